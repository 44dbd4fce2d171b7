"""Reading tables beside the stream: at an exported snapshot, and in watermark windows."""
