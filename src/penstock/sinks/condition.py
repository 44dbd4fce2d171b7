r"""A condition on rows, in SQL: option ``where`` of a sink.

::

    'status <> ''draft'' AND amount >= 10'  ─▶ sqlglot (Postgres) ─▶ checked with the columns ─▶ functions on columns

| form | |
|---|---|
| column = value, also <>, !=, <, <=, >, >= | a value is a literal, or another column of the same type |
| column [NOT] IN (literal, …) | |
| column [NOT] BETWEEN value AND value | |
| column [NOT] LIKE 'pattern', [NOT] ILIKE | ``%``, ``_``, and ``\`` as the escape |
| column IS [NOT] NULL | of any type |
| column IS [NOT] DISTINCT FROM value | |
| a boolean column; condition IS [NOT] TRUE, FALSE, UNKNOWN | |
| AND, OR, NOT, parentheses | |

Everything else is an error when the sink is created. The logic is that of SQL, with three values: a condition is true,
false or null, and only a row for which it is true passes. Conditions are computed on whole columns, without Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError

from penstock.errors import UsageError
from penstock.model import TableSchema
from penstock.name_suggestions import nearest
from penstock.sinks.comparisons import (
    Literal,
    Operand,
    Operator,
    compare,
    is_text,
    like_regex,
    literal_operand,
    operand,
)
from penstock.sinks.messages import Flags

__all__ = ["Condition"]

_Evaluate = Callable[[pa.StructArray], pa.Array]

_SUPPORTED = (
    "Supported are comparisons of columns with literals, IN, BETWEEN, LIKE, IS NULL, IS DISTINCT FROM, AND, OR and NOT."
)
_COMPARED = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ)
_ARGUMENTS: dict[type[exp.Expr], frozenset[str]] = {
    **dict.fromkeys((exp.Paren, exp.Not, exp.Column, exp.Neg, exp.Boolean), frozenset({"this"})),
    **dict.fromkeys((exp.And, exp.Or, *_COMPARED), frozenset({"this", "expression"})),
    **dict.fromkeys((exp.Is, exp.Like, exp.ILike), frozenset({"this", "expression", "negate"})),
    exp.Between: frozenset({"this", "low", "high"}),
    exp.In: frozenset({"this", "expressions"}),
    exp.Literal: frozenset({"this", "is_string"}),
    exp.Identifier: frozenset({"this", "quoted"}),
    exp.Null: frozenset(),
}
"""All that is supported of what sqlglot parses: the classes, and their arguments."""
_OPERATORS: dict[type[exp.Expr], Operator] = {
    exp.EQ: Operator.EQUAL,
    exp.NEQ: Operator.NOT_EQUAL,
    exp.LT: Operator.LESS,
    exp.LTE: Operator.LESS_EQUAL,
    exp.GT: Operator.GREATER,
    exp.GTE: Operator.GREATER_EQUAL,
}
_MIRRORED = {
    Operator.LESS: Operator.GREATER,
    Operator.LESS_EQUAL: Operator.GREATER_EQUAL,
    Operator.GREATER: Operator.LESS,
    Operator.GREATER_EQUAL: Operator.LESS_EQUAL,
}


class Condition:
    """A condition on the rows of one version of one table."""

    def __init__(self, text: str, schema: TableSchema) -> None:
        """Parse a condition; raise `UsageError` if it is invalid for this table."""
        compiler = _Compiler(schema)
        self._evaluate = compiler.condition(_parsed(text))
        self.columns = frozenset(compiler.used)
        """The names of the columns that it depends on."""

    def holds(self, rows: pa.StructArray) -> Flags:
        """Return for which rows the condition is true: not false, and not null."""
        found: Flags = pc.fill_null(self._evaluate(rows), False).to_numpy(zero_copy_only=False)
        return found


def _parsed(text: str) -> exp.Expr:
    try:
        found = sqlglot.parse_one(text, read="postgres", into=exp.Condition)
    except SqlglotError as error:
        at = error.errors[0] if isinstance(error, ParseError) and error.errors else {}
        near = f' at or near "{at["highlight"]}"' if at.get("highlight") else ""
        message = f'syntax error in option "where"{near}'
        raise UsageError(message, "Use a condition such as status <> 'draft'; in SQL, double its quotes.") from None
    for node in found.walk():
        given = {name for name, value in node.args.items() if value not in (None, False, [])}
        if type(node) not in _ARGUMENTS or not given <= _ARGUMENTS[type(node)]:
            raise _unsupported(node)
    return found


def _unsupported(node: exp.Expr) -> UsageError:
    if isinstance(node, exp.Column):
        message = f'option "where": {_text(node)} is not the name of a column'
        return UsageError(message, "Write the column without its table.")
    return UsageError(f'option "where" does not support {_text(node)}', _SUPPORTED)


def _text(node: exp.Expr) -> str:
    return node.sql(dialect="postgres", comments=False)


def _bare(node: exp.Expr) -> exp.Expr:
    """Return what is in parentheses."""
    while isinstance(node, exp.Paren):
        node = node.this
    return node


class _Compiler:
    """Makes functions of the parts of a condition."""

    def __init__(self, schema: TableSchema) -> None:
        self._columns = schema.columns
        self.used: set[str] = set()

    def condition(self, node: exp.Expr) -> _Evaluate:
        """Return the function of a condition: true, false or null for each row."""
        node = _bare(node)
        match node:
            case exp.And() | exp.Or():
                return self._both(node)
            case exp.Not():
                return _inverted(self.condition(node.this))
            case exp.NullSafeEQ() | exp.NullSafeNEQ():
                return self._distinct(node)
            case exp.Is():
                return self._is(node)
            case exp.In():
                return self._in(node)
            case exp.Between():
                low = self._comparison(Operator.GREATER_EQUAL, node.this, node.args["low"])
                high = self._comparison(Operator.LESS_EQUAL, node.this, node.args["high"])
                return lambda rows: pc.and_kleene(low(rows), high(rows))
            case exp.Like() | exp.ILike():
                return self._like(node)
            case exp.Column():
                return self._comparison(Operator.EQUAL, node, exp.true())
        if type(node) in _OPERATORS:
            return self._comparison(_OPERATORS[type(node)], node.this, node.expression)
        raise _unsupported(node)

    def _both(self, node: exp.Expr) -> _Evaluate:
        combine = pc.and_kleene if isinstance(node, exp.And) else pc.or_kleene
        left, right = self.condition(node.this), self.condition(node.expression)
        return lambda rows: combine(left(rows), right(rows))

    def _is(self, node: exp.Expr) -> _Evaluate:
        tested, wanted = _bare(node.this), node.expression
        if isinstance(wanted, exp.Null):
            found = self._values(tested)

            def evaluate(rows: pa.StructArray) -> pa.Array:
                return pc.is_null(found(rows))
        elif isinstance(wanted, exp.Boolean):
            found, is_true = self.condition(tested), bool(wanted.this)

            def evaluate(rows: pa.StructArray) -> pa.Array:
                truth = found(rows)
                return pc.fill_null(truth if is_true else pc.invert(truth), False)
        else:
            raise _unsupported(node)
        return _inverted(evaluate) if node.args.get("negate") else evaluate

    def _values(self, tested: exp.Expr) -> _Evaluate:
        """Return the function of a column of any type, or of a condition."""
        return self._column(tested).values if isinstance(tested, exp.Column) else self.condition(tested)

    def _in(self, node: exp.Expr) -> _Evaluate:
        equal = [self._comparison(Operator.EQUAL, node.this, each) for each in node.expressions]
        if not equal:
            raise _unsupported(node)
        return lambda rows: reduce(pc.or_kleene, (one(rows) for one in equal))

    def _like(self, node: exp.Expr) -> _Evaluate:
        column, pattern = self._column(_bare(node.this)), node.expression
        if not isinstance(pattern, exp.Literal) or not pattern.is_string:
            raise _unsupported(node)
        if not is_text(column):
            message = f'option "where": column {column.text} is not text, and LIKE requires text'
            raise UsageError(message, "Use a comparison, or another column.")
        try:
            regex = like_regex(pattern.this)
        except ValueError:
            message = 'option "where": a pattern of LIKE must not end with the escape character'
            raise UsageError(message, "Double the backslash.") from None
        ignore_case = isinstance(node, exp.ILike)

        def evaluate(rows: pa.StructArray) -> pa.Array:
            return pc.match_substring_regex(column.values(rows), regex, ignore_case=ignore_case)

        return _inverted(evaluate) if node.args.get("negate") else evaluate

    def _distinct(self, node: exp.Expr) -> _Evaluate:
        left, right = _bare(node.this), _bare(node.expression)
        if not isinstance(left, exp.Column):
            left, right = right, left
        is_distinct = self._distinct_null(left) if isinstance(right, exp.Null) else self._distinct_values(left, right)
        return _inverted(is_distinct) if isinstance(node, exp.NullSafeEQ) else is_distinct

    def _distinct_null(self, column: exp.Expr) -> _Evaluate:
        values = self._column(column).values
        return lambda rows: pc.is_valid(values(rows))

    def _distinct_values(self, left: exp.Expr, right: exp.Expr) -> _Evaluate:
        unequal, column = self._comparison(Operator.NOT_EQUAL, left, right), self._column(left)
        other = self._column(right) if isinstance(right, exp.Column) else None

        def evaluate(rows: pa.StructArray) -> pa.Array:
            one_missing = pc.is_null(column.values(rows))
            if other is not None:
                one_missing = pc.xor(one_missing, pc.is_null(other.values(rows)))
            return pc.coalesce(unequal(rows), one_missing)

        return evaluate

    def _comparison(self, operator: Operator, left: exp.Expr, right: exp.Expr) -> _Evaluate:
        left, right = _bare(left), _bare(right)
        if not isinstance(left, exp.Column):
            left, right, operator = right, left, _MIRRORED.get(operator, operator)
        column = self._column(left)
        other = self._column(right) if isinstance(right, exp.Column) else _literal(right, column)
        return compare(operator, column, other)

    def _column(self, node: exp.Expr) -> Operand:
        """Return a column; a name without quotes is also found in lower case, as in Postgres."""
        if not isinstance(node, exp.Column):
            message = f'option "where": {_text(node)} is not a column, and comparisons require one'
            raise UsageError(message, _SUPPORTED)
        name, names = str(node.this.this), self._columns.names
        if name not in names and not node.this.quoted:
            name = name.lower()
        if name not in names:
            message = f'column "{name}" in option "where" does not exist'
            raise UsageError(message, nearest(name, names, '"') or f"The columns are: {', '.join(names[:20])}.")
        self.used.add(name)
        index = names.index(name)
        return operand(index, self._columns.field(index))


def _inverted(evaluate: _Evaluate) -> _Evaluate:
    return lambda rows: pc.invert(evaluate(rows))


def _literal(node: exp.Expr, column: Operand) -> Operand:
    if isinstance(node, exp.Null):
        message = f'option "where": a comparison of column {column.text} with NULL is never true'
        raise UsageError(message, "Use IS NULL or IS NOT NULL.")
    value = _literal_value(node)
    if value is None:
        raise _unsupported(node)
    return literal_operand(value, _text(node), column)


def _literal_value(node: exp.Expr) -> Literal | None:
    """Return the value of a literal; None if it is none."""
    if isinstance(node, exp.Boolean):
        return bool(node.this)
    if isinstance(node, exp.Neg):
        value = _literal_value(_bare(node.this))
        return value.copy_negate() if isinstance(value, Decimal) else None  # minus would round it
    if not isinstance(node, exp.Literal):
        return None
    try:
        return str(node.this) if node.is_string else Decimal(node.this)
    except InvalidOperation:
        return None
