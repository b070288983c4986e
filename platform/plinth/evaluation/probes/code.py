"""Built-in code probe: names, brackets, results and calls in small programs, most of them in Python.

Answers follow from the lines before (a parameter's name, the open bracket, the value of a variable) or from the
language and its library (the exception that a call raises, the member of a module). Names are chosen by hash, so no
program occurs verbatim in training text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from plinth.evaluation.probes import base
from plinth.evaluation.probes.base import Cloze, Probe, ProbeItem, words

FAMILY = "code"
#: Items of a template whose names are drawn.
ITEMS = 12

NAMES = words(
    "width height depth price amount count total speed weight radius offset margin length volume angle score limit "
    "ratio budget tax delay rate shift gain step scale load mass force power"
)
PLURALS = words("rows users orders lines files words prices points tasks events books cities nodes tokens images rules")
MODULES = words("numpy pandas datetime collections pathlib decimal string")
VERBS = words("compute update merge check collect select apply resolve measure adjust")

#: A module and a call of one of its members.
MEMBERS = """
math => sqrt(2.0)
json => dumps(record)
os => getcwd()
re => compile(pattern)
time => sleep(1)
random => randint(1, 6)
sys => exit(1)
csv => reader(stream)
shutil => copyfile(source, target)
itertools => chain(first, second)
subprocess => run(command)
logging => getLogger(__name__)
copy => deepcopy(value)
"""
#: A statement and the exception that it raises.
RAISES = """
number = int("twelve") => ValueError
value = {}["missing"] => KeyError
value = [][5] => IndexError
ratio = 1 / 0 => ZeroDivisionError
text = open("/no/such/file").read() => FileNotFoundError
import no_such_module => ImportError
total = 1 + "one" => TypeError
size = (5).length => AttributeError
print(never_defined) => NameError
text = bytes([255]).decode("utf-8") => UnicodeDecodeError
last = next(iter([])) => StopIteration
"""
#: An expression and its value, as a session shows it.
VALUES = """
len("abcdef") => 6
sum([1, 2, 3, 4]) => 10
max(3, 9, 5) => 9
"abc".upper() => 'ABC'
sorted([3, 1, 2]) => [1, 2, 3]
list(range(4)) => [0, 1, 2, 3]
"a,b,c".split(",") => ['a', 'b', 'c']
"-".join(["x", "y"]) => 'x-y'
bool([]) => False
abs(-7) => 7
2 ** 5 => 32
not False => True
[n * n for n in (1, 2, 3)] => [1, 4, 9]
"hello"[1:3] => 'el'
{"a": 1, "b": 2}["b"] => 2
str(12) + "3" => '123'
"""
#: Docstrings, each with the expression that fits; the function's arguments are `a` and `b`.
BODIES = """
the sum of two numbers => a + b
the difference of two numbers => a - b
the product of two numbers => a * b
the quotient of two numbers => a / b
the larger of two numbers => max(a, b)
the smaller of two numbers => min(a, b)
whether two values are equal => a == b
whether the first is greater => a > b
the mean of two numbers => (a + b) / 2
whether both are true => a and b
whether at least one is true => a or b
the remainder of a division => a % b
"""
#: Lines of a file, divided by `|`, and how it goes on.
LANGUAGES = """
#include <stdio.h>||int main(void)|{|    => printf(
<!DOCTYPE html>|<html>|<head>|<meta charset="utf-8">| => <title>
#!/bin/bash|for file in *.txt; do|    => echo
SELECT name, age|FROM people| => WHERE
public class Main {|    public static => void
package main||import "fmt"||func main() {|    => fmt.Println(
fn main() {|    let name = "world";|    => println!(
const items = [1, 2, 3];|for (const item of items) {|    => console.log(
FROM python:3.11|WORKDIR /app|COPY . .| => RUN
all: program||program: main.o| => gcc
"""
#: Beginnings of lines that occur in every program, with their continuation. A small model learns these first.
IDIOMS = """
if __name__ =>  == "__main__":
from __future__ import =>  annotations
def __init__( => self
class ParseError( => Exception
if value is not =>  None:
    @property|    def name( => self
try:|    import json|except =>  ImportError
def __enter__(self):|        return =>  self
if not isinstance(value, int):|    raise =>  TypeError(
    raise NotImplemented => Error
        return True|    else:|        return =>  False
for index, item in =>  enumerate(
for left, right in =>  zip(
path = os.path. => join(
    sys.stdout. => write(
    @classmethod|    def create( => cls
def __eq__(self, =>  other
logger = logging.getLogger( => __name__)
        super().__init__ => (
from collections import Ordered => Dict
"""
#: Lines without their ends.
ENDINGS = """
def area(width, height => ):
for row in rows => :
total = sum(values => )
items = [1, 2, 3 => ]
data = {"a": 1 => }
while count > 0 => :
print("hello => ")
name = 'world => '
    \"\"\"Return the area. => \"\"\"
first = values[0 => ]
class Shape(object => ):
value = table["name => "]
"""


def _fresh(name: str, count: int) -> list[str]:
    return base.some(name, NAMES, count)


def _argument(name: str) -> Cloze:
    a, b, c, *others = _fresh(name, 6)
    verb = base.one(name, VERBS)
    prompt = f"def {verb}_{others[0]}({a}, {b}, {c}):\n    first = {a} * 2\n    second = {b} + 1\n"
    prompt += "    return first + second +"
    return Cloze(prompt, f" {c}\n", tuple(f" {other}\n" for other in others))


def _loop(name: str) -> Cloze:
    rows, others, more, last = base.some(name, PLURALS, 4)
    field, limit = _fresh(name, 2)
    prompt = f"def large_{rows}({rows}, {limit}):\n    found = []\n    for one_of_{rows} in {rows}:\n"
    prompt += f"        if one_of_{rows}.{field} > {limit}:\n            found.append("
    return Cloze(prompt, f"one_of_{rows})\n", tuple(f"one_of_{other})\n" for other in (others, more, last)))


def _attribute(name: str) -> Cloze:
    a, b, *others = _fresh(name, 5)
    noun = base.one(name, VERBS).capitalize() + "Settings"
    prompt = f"class {noun}:\n    def __init__(self, {a}, {b}):\n        self.{a} = {a}\n        self.{b} ="
    return Cloze(prompt, f" {b}\n", tuple(f" {other}\n" for other in others))


def _brackets(name: str) -> Cloze:
    opened = base.one(name, ["([", "[(", "{(", "([(", "[[(", "{[(", "[{(", "(([", "[([", "{([", "({[", "[(["])
    closing = {"(": ")", "[": "]", "{": "}"}
    a, b, c, d = _fresh(name, 4)
    right = "".join(closing[sign] for sign in reversed(opened))
    wrong = [right[::-1], *(right.replace(x, y) for x, y in (")]", "])", "})", ")}"))]
    different = [one for one in dict.fromkeys(wrong) if one != right and len(one) == len(right)][:3]
    return Cloze(f"{a} = {opened}{b}, {c}, {d}", f"{right}\n", tuple(f"{one}\n" for one in different))


def _alias(name: str) -> Cloze:
    module, other = base.some(name, MODULES, 2)
    alias, *wrong = _fresh(name, 4)
    prompt = f"import {module} as {alias}_tools\nimport {other}\n\n\ndef load():\n    # from {module}\n    return"
    return Cloze(prompt, f" {alias}_tools.", tuple(f" {one}_tools." for one in wrong))


def _trace(name: str) -> Cloze:
    a, b = _fresh(name, 2)
    x, y = base.number(name, 2, 9), base.number(f"{name}/y", 11, 40)
    prompt = f">>> {a} = {x}\n>>> {b} = {y}\n>>> {a} = {a} + {b}\n>>> {b} = 0\n>>> {a}\n"
    return Cloze(prompt.rstrip(), f"\n{x + y}\n", tuple(f"\n{one}\n" for one in (x, y, x + y + 1)))


def _look_up(name: str) -> Cloze:
    keys = _fresh(name, 4)
    values = [base.number(f"{name}/{key}", 10, 99) for key in keys]
    asked = base.number(name, 0, 3)
    listed = ", ".join(f"'{key}': {value}" for key, value in zip(keys, values, strict=True))
    wrong = [value for i, value in enumerate(values) if i != asked]
    return Cloze(
        f">>> table = {{{listed}}}\n>>> table['{keys[asked]}']",
        f"\n{values[asked]}\n",
        tuple(f"\n{one}\n" for one in wrong if one != values[asked]),
    )


def _call(name: str) -> Cloze:
    a, b, *others = _fresh(name, 6)
    verb, first, second = base.one(name, VERBS), base.number(name, 1, 9), base.number(f"{name}/2", 10, 99)
    prompt = f"def {verb}(*, {a}, {b}):\n    return {a} / {b}\n\n\nresult = {verb}({a}={first},"
    return Cloze(prompt, f" {b}={second})\n", tuple(f" {other}={second})\n" for other in others[:3]))


#: Templates whose names are drawn.
DRAWN: dict[str, Callable[[str], Cloze]] = {
    "argument": _argument,
    "loop_variable": _loop,
    "attribute": _attribute,
    "brackets": _brackets,
    "alias": _alias,
    "trace": _trace,
    "look_up": _look_up,
    "keyword_call": _call,
}


def _known() -> Iterator[tuple[str, list[Cloze]]]:
    """Yield each template about Python and its standard library, with its clozes."""
    yield "members", _table("import {0}\n\n\ndef main():\n    result = {0}", ".", MEMBERS)
    yield "exceptions", _table("try:\n    {0}\nexcept", " ", RAISES, ":\n")
    yield "values", _table(">>> {0}", "\n", VALUES, "\n")
    yield "bodies", _table('def function(a, b):\n    """Return {0}."""\n    return', " ", BODIES, "\n")
    yield "idioms", _lines(IDIOMS, "")
    yield "endings", _lines(ENDINGS, "\n")
    rows = [Cloze(one.prompt.replace("|", "\n").rstrip(), one.gold) for one in _table("{0}", "\n    ", LANGUAGES)]
    yield "languages", rows


def _lines(rows: str, after: str) -> list[Cloze]:
    """Return clozes from rows that include their own white space; `|` stands for a line break."""
    pairs = (row.split(" => ", 1) for row in rows.strip("\n").splitlines())
    return [Cloze(prompt.replace("|", "\n"), answer + after) for prompt, answer in pairs]


def _table(pattern: str, before: str, rows: str, after: str = "") -> list[Cloze]:
    """Return clozes from lines `subject => answer`; `before` and `after` enclose each answer."""
    pairs = (row.split(" => ") for row in rows.strip().splitlines())
    return [Cloze(pattern.format(subject), f"{before}{answer}{after}") for subject, answer in pairs]


def build() -> list[ProbeItem]:
    """Return all items of the code probe, template by template."""
    made: list[ProbeItem] = []
    for template, draw in DRAWN.items():
        made += base.items(FAMILY, template, [draw(f"{FAMILY}/{template}/{i}") for i in range(ITEMS)])
    for template, rows in _known():
        made += base.items(FAMILY, template, rows)
    return made


CODE_PROBE = Probe(FAMILY, "Completion of idioms, names, brackets, values, exceptions and programs.", FAMILY, build)
