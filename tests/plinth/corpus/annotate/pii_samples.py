"""Generated sentences with personal data and look-alikes, with known truth; none of the data belongs to a real person.

Check digits are computed here by other code than the rules': a rule and its sample cannot be wrong together.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from typing import NamedTuple


class Sample(NamedTuple):
    """A text, and what is in it: kind and the exact characters."""

    text: str
    truth: tuple[tuple[str, str], ...]


def digits(rng: random.Random, size: int) -> str:
    return "".join(rng.choice(string.digits) for _ in range(size))


def luhn_complete(body: str) -> str:
    """By the table of doubled digits, from the right."""
    doubled = sum(int("0246813579"[int(c)]) if i % 2 == 0 else int(c) for i, c in enumerate(reversed(body)))
    return body + str(-doubled % 10)


def email(rng: random.Random) -> str:
    first, last = (
        rng.choice(("jane", "tom", "ana.m", "li", "o_brien", "k.s")),
        rng.choice(("doe", "ng7", "ruiz", "b-w")),
    )
    host = rng.choice(("tidewater", "north-hill", "mail.lantern", "orchard", "k7"))
    return f"{first}{rng.choice(('.', '_', '', '+'))}{last}@{host}.{rng.choice(('net', 'org', 'co.uk', 'io', 'de'))}"


def n(rng: random.Random, least: int, most: int) -> str:
    return str(rng.randint(least, most))


def hexes(rng: random.Random, size: int) -> str:
    return token(rng, size, "0123456789abcdef")


def ipv4(rng: random.Random) -> str:
    first = rng.choice(("34", "52", "81", "93", "151", "185", "212"))
    return f"{first}.{n(rng, 1, 99)}.{n(rng, 1, 255)}.{n(rng, 1, 254)}"


def ipv6(rng: random.Random) -> str:
    return f"2606:{rng.randint(4096, 65535):x}:{rng.randint(1, 65535):x}::{rng.randint(1, 65535):x}"


def phone(rng: random.Random) -> str:
    area, exchange, line = rng.randint(22, 98), rng.choice((234, 367, 482, 867)), rng.randint(1000, 9999)
    area = 10 * area + rng.choice((0, 2, 5, 7))
    return rng.choice(
        (
            f"({area}) {exchange}-{line}", f"{area}-{exchange}-{line}", f"+1 {area} {exchange} {line}",
            f"+49 {rng.randint(30, 89)} {digits(rng, 7)}", f"+44 20 7{digits(rng, 3)} {digits(rng, 4)}",
            f"+33 6 {digits(rng, 2)} {digits(rng, 2)} {digits(rng, 2)} {digits(rng, 2)}",
        )
    )  # fmt: skip


def national_phone(rng: random.Random) -> str:
    return rng.choice(
        (
            f"030 {rng.randint(200000, 999999)}", f"0171-{rng.randint(2000000, 9999999)}", f"020 7946 {digits(rng, 4)}",
            f"01 {digits(rng, 2)} {digits(rng, 2)} {digits(rng, 2)} {digits(rng, 2)}", f"06{digits(rng, 8)}",
            f"{rng.randint(2, 9)}{digits(rng, 2)}-{digits(rng, 4)}",
        )
    )  # fmt: skip


def iban(rng: random.Random) -> str:
    country, size = rng.choice((("DE", 18), ("AT", 16), ("CH", 17), ("DK", 14), ("BE", 12), ("ES", 20)))
    body = digits(rng, size)
    number = int(body + "".join(str(ord(letter) - 55) for letter in country) + "00")
    plain = f"{country}{98 - number % 97:02d}{body}"
    return plain if rng.random() < 0.5 else " ".join(plain[i : i + 4] for i in range(0, len(plain), 4))


def card(rng: random.Random) -> str:
    plain = luhn_complete(
        rng.choice(("4", "51", "55", "2221", "6011")).ljust(4, rng.choice("0123456789")) + digits(rng, 11)
    )
    return rng.choice(
        (
            plain,
            " ".join(plain[i : i + 4] for i in range(0, 16, 4)),
            "-".join(plain[i : i + 4] for i in range(0, 16, 4)),
        )
    )


def ssn(rng: random.Random) -> str:
    return f"{rng.randint(1, 665):03d}-{rng.randint(1, 99):02d}-{rng.randint(1, 9999):04d}"


def nino(rng: random.Random) -> str:
    letters = rng.choice("ABCEHJ") + rng.choice("ABCEHJ")
    return f"{letters} {digits(rng, 2)} {digits(rng, 2)} {digits(rng, 2)} {rng.choice('ABCD')}"


def nir(rng: random.Random) -> str:
    body = f"{rng.choice('12')}{digits(rng, 2)}{rng.randint(1, 12):02d}{rng.randint(1, 95):02d}{digits(rng, 6)}"
    return f"{body}{97 - int(body) % 97:02d}"


def dni(rng: random.Random) -> str:
    number = rng.randint(10**7, 10**8 - 1)
    return f"{number}{'TRWAGMYFPDXBNJZSQVHLCKE'[number % 23]}"


def bsn(rng: random.Random) -> str:
    while True:
        text = digits(rng, 9)
        if (sum((9 - i) * int(c) for i, c in enumerate(text[:8])) - int(text[8])) % 11 == 0 and text[0] != "0":
            return text


def cpf(rng: random.Random) -> str:
    values = [rng.randint(0, 9) for _ in range(9)]
    for size in (10, 11):
        rest = sum((size - i) * value for i, value in enumerate(values)) % 11
        values.append(0 if rest < 2 else 11 - rest)
    text = "".join(map(str, values))
    return f"{text[:3]}.{text[3:6]}.{text[6:9]}-{text[9:]}"


def token(rng: random.Random, size: int, alphabet: str = string.ascii_letters + string.digits) -> str:
    return "".join(rng.choice(alphabet) for _ in range(size))


POSITIVES: dict[str, tuple[tuple[str, Callable[[random.Random], str]], ...]] = {
    "email": (
        ("Write to {} before Friday.", email), ("Contact: <{}>", email), ("Author: A. Doe ({}), 2019", email),
        ("mailto:{}?subject=hello", email), ("问题请联系{}。", email), ('{{"user": "{}"}}', email),
    ),
    "ip": (
        ("The request came from {} last night.", ipv4), ("{} - - [10/Oct/2000:13:55:36 -0700] \"GET /\"", ipv4),
        ("connect to {}:8080 failed", ipv4), ("host [{}] is down", ipv6), ("ping {} works", ipv6),
    ),
    "phone": (
        ("Call {} for an appointment.", phone), ("Our office: {}, open daily", phone), ("Tel.: {}", national_phone),
        ("Telefon: {} (abends)", national_phone), ("Téléphone {} le matin", national_phone),
        ("fax no. {}", national_phone),
        ("My number is {}", phone), ("mobile {}", national_phone),
    ),
    "iban": (("Bank account: {}", iban), ("Bitte auf {} zahlen.", iban), ("IBAN {}, BIC COBADEFF", iban)),
    "card": (("I paid with card {} yesterday.", card), ("Visa: {} exp 12/27", card), ("credit card number {}", card)),
    "national": (
        ("Her SSN is {}.", ssn), ("ssn: {}", ssn), ("{} was on the form", ssn), ("National Insurance number {}", nino),
        ("numéro de sécurité sociale : {}", nir), ("con DNI {}, vecino", dni), ("BSN {} van de klant", bsn),
        ("CPF {}", cpf), ("inscrito sob o {} no cadastro", cpf),
    ),
    "key": (
        ('aws_access_key_id = "{}"', lambda rng: "AKIA" + token(rng, 16, string.ascii_uppercase + "234567")),
        ("export GITHUB_TOKEN={}", lambda rng: "ghp_" + token(rng, 36)),
        ('api_key: "{}"', lambda rng: token(rng, 32)), ("SECRET_KEY={}", lambda rng: token(rng, 40)),
        ('"password": "{}"', lambda rng: token(rng, 20)),
        ("Authorization: Bearer {}", lambda rng: token(rng, 40)),
        ("slack {} leaked", lambda rng: "xoxb-" + digits(rng, 11) + "-" + token(rng, 24)),
        ("google {} key", lambda rng: "AIza" + token(rng, 35)),
    ),
}  # fmt: skip

NEGATIVES: tuple[Callable[[random.Random], str], ...] = (
    lambda rng: f"version {n(rng, 33, 99)}.{n(rng, 0, 50)}.{n(rng, 0, 255)}.{n(rng, 0, 255)} is out",
    lambda rng: f"see section {n(rng, 1, 9)}.{n(rng, 1, 9)}.{n(rng, 1, 9)}.{n(rng, 1, 9)}",
    lambda rng: (
        f"at 2024-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d} {n(rng, 10, 23)}:{n(rng, 10, 59)}:33.123456"
    ),
    lambda rng: f'"timestamp": 17{digits(rng, 11)}, "id": {n(rng, 10**8, 10**9)}',
    lambda rng: f"Order number {digits(rng, 10)} has been shipped",
    lambda rng: f"order {luhn_complete('4' + digits(rng, 14))} is ready",
    lambda rng: f"commit {hexes(rng, 40)}",
    lambda rng: f"sha256: {hexes(rng, 64)}",
    lambda rng: f"ISBN 978-{n(rng, 0, 9)}-{digits(rng, 2)}-{digits(rng, 6)}-{n(rng, 0, 9)}, 300 pages",
    lambda rng: f"ISBN {digits(rng, 10)}",
    lambda rng: f"$x^{{{n(rng, 1, 9)}}} + {digits(rng, 2)}.{digits(rng, 7)}$ and \\cite{{doe{n(rng, 1990, 2020)}a}}",
    lambda rng: f"0x{hexes(rng, 16)}, {digits(rng, 12)}UL",
    lambda rng: " ".join(f"0.{digits(rng, 6)}" for _ in range(5)),
    lambda rng: " ".join(digits(rng, 4) for _ in range(4)),
    lambda rng: f"@property def x{n(rng, 1, 9)}(self): return a@b",
    lambda rng: f"icon-{n(rng, 16, 64)}@2x.png and git@github.com:a/b.git",
    lambda rng: f"std::vector<int> a{n(rng, 1, 9)}; x[::2]; 12:{n(rng, 10, 59)}:45",
    lambda rng: f"uuid {hexes(rng, 8)}-{hexes(rng, 4)}-4{hexes(rng, 3)}-a1b2-{hexes(rng, 12)}",
    lambda rng: f"token = get_access_token_from_environment_{n(rng, 1, 99)}(name)",
    lambda rng: f'password = "your-password-here-{n(rng, 1, 99)}"',
    lambda rng: f"Population: {n(rng, 1, 9)} {digits(rng, 3)} {digits(rng, 3)} in 1950-{n(rng, 1960, 2020)}",
    lambda rng: f"Copyright (c) {n(rng, 1990, 2000)}-{n(rng, 2001, 2024)} by all",
    lambda rng: f"$ {n(rng, 1, 9)},{digits(rng, 3)},{digits(rng, 3)}.00 per year",
    lambda rng: f"part no. {digits(rng, 3)}-{digits(rng, 2)}-{digits(rng, 3)}, tracking {digits(rng, 12)}",
    lambda rng: f"pip install package=={n(rng, 33, 99)}.{n(rng, 1, 9)}.{n(rng, 1, 9)}.{n(rng, 1, 99)}",
    lambda rng: f"phone model {digits(rng, 8)}, serial {digits(rng, 11)}",
    lambda rng: f"write to someone@example.com or (212) 555-01{digits(rng, 2)}",
    lambda rng: f"sorting keys took {digits(rng, 7)} ns; def test_key_{token(rng, 3)}_with_long_name_{n(rng, 1, 9)}():",
)


def samples(seed: int, each: int) -> list[Sample]:
    """`each` samples of every template."""
    rng = random.Random(seed)
    made = []
    for kind, templates in POSITIVES.items():
        for template, value in templates:
            for _ in range(each):
                planted = value(rng)
                made.append(Sample(template.format(planted), ((kind, planted),)))
    made += [Sample(negative(rng), ()) for negative in NEGATIVES for _ in range(each)]
    rng.shuffle(made)
    return made
