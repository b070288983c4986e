"""Hard cases for personal data by kind and country: values in sentences that hide them, and look-alikes.

Nothing is copied from the rules: check digits come from the definitions in the publishers' words, in other code.

    python tests/plinth/corpus/annotate/pii_hard.py     prints the tables of docs/languages-and-pii.md
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pyarrow as pa

from plinth.corpus.annotate.pii.pii import PiiParams, annotate
from tests.plinth.corpus.annotate import pii_samples as made


class Case(NamedTuple):
    """A text, what is in it (kind, country, the exact characters), or None: then `country` names the look-alike."""

    text: str
    kind: str
    country: str
    value: str | None


def weigh(text: str, weights: str) -> int:
    return sum(int(digit) * int(weight, 16) for digit, weight in zip(text, weights, strict=True))


def last(rng: random.Random, size: int, check: Callable[[str], bool], first: str = "") -> str:
    """Random digits of a size, after `first`, that pass a check."""
    while True:
        text = first + made.digits(rng, size - len(first))
        if text[0] != "0" and check(text):
            return text


def born(rng: random.Random, form: str = "{y:02d}{m:02d}{d:02d}") -> str:
    return form.format(y=rng.randint(40, 99), m=rng.randint(1, 12), d=rng.randint(1, 28))


def aadhaar(rng: random.Random) -> str:
    def times(a: int, b: int) -> int:  # the dihedral group of ten elements: turns, then mirrored turns
        turn = a % 5 + b % 5 if a < 5 else a % 5 - b % 5
        return turn % 5 + 5 * ((a < 5) != (b < 5))

    def check(text: str) -> bool:
        state = 0
        for place, digit in enumerate(reversed(text)):
            value = int(digit)
            for _ in range(place % 8):
                value = (1, 5, 7, 6, 2, 8, 3, 0, 9, 4)[value]
            state = times(state, value)
        return state == 0

    return last(rng, 12, check, rng.choice("23456789"))


def steuer(rng: random.Random) -> str:
    ten = rng.sample("123456789", 9)
    ten.insert(rng.randint(3, 9), ten[0])
    product = 10
    for digit in ten:
        product = ((int(digit) + product) % 10 or 10) * 2 % 11
    return "".join(ten) + str((11 - product) % 10)


def niss(rng: random.Random) -> str:
    body = born(rng) + f"{rng.randint(1, 997):03d}"
    return f"{body}{97 - int(body) % 97:02d}"


def hetu(rng: random.Random) -> str:
    day, serial = born(rng, "{d:02d}{m:02d}{y:02d}"), f"{rng.randint(2, 899):03d}"
    return f"{day}-{serial}{'0123456789ABCDEFHJKLMNPRSTUVWXY'[int(day + serial) % 31]}"


def codice(rng: random.Random) -> str:
    body = made.token(rng, 6, "BCDFGLMNPRST") + f"{rng.randint(40, 99)}{rng.choice('ABCDEHLMPRST')}"
    body += f"{rng.choice((0, 40)) + rng.randint(1, 28):02d}{rng.choice('ABCDEFGHIL')}{rng.randint(1, 999):03d}"
    order = "BAKPLCQDREVOSFTGUHMINJWZYX"  # letters by their value at odd places
    odd = [order.index(c if c.isalpha() else chr(65 + int(c))) for c in body[::2]]
    even = [ord(c) - 65 if c.isalpha() else int(c) for c in body[1::2]]
    return body + chr(65 + sum(odd + even) % 26)


def nif(rng: random.Random) -> str:
    body = rng.choice("12") + made.digits(rng, 7)
    rest = 11 - weigh(body, "98765432") % 11
    return f"{body}{rest if rest < 10 else 0}"


def chinese(rng: random.Random) -> str:
    body = rng.choice(("110105", "310115", "440106", "510104", "610113")) + f"19{born(rng)}" + made.digits(rng, 3)
    for check in "0123456789X":  # ISO 7064, MOD 11-2: the sum with the check is 1
        value = 0
        for character in body + check:
            value = (value * 2 + (10 if character == "X" else int(character))) % 11
        if value == 1:
            return body + check
    raise AssertionError(body)


def swiss(rng: random.Random) -> str:
    text = last(rng, 13, lambda text: weigh(text, "1313131313131") % 10 == 0, "756")
    return f"{text[:3]}.{text[3:7]}.{text[7:11]}.{text[11:]}"


def nie(rng: random.Random) -> str:
    first, number = rng.randint(0, 2), rng.randint(10**6, 10**7 - 1)
    return f"{'XYZ'[first]}{number}{'TRWAGMYFPDXBNJZSQVHLCKE'[(first * 10**7 + number) % 23]}"


def pesel(rng: random.Random) -> str:
    return last(rng, 11, lambda text: weigh(text, "13791379131") % 10 == 0, born(rng))


def personnummer(rng: random.Random) -> str:
    text = made.luhn_complete(born(rng) + made.digits(rng, 3))
    return f"{text[:6]}-{text[6:]}"


def three(text: str) -> str:
    return " ".join(text[at : at + 3] for at in range(0, len(text), 3))


def canadian(rng: random.Random) -> str:
    return three(made.luhn_complete(rng.choice("1234567") + made.digits(rng, 7)))


def australian(rng: random.Random) -> str:
    return three(last(rng, 9, lambda text: weigh(text, "14375869a") % 11 == 0))


#: Rule, a value, and sentences that hold it.
NATIONAL: dict[str, tuple[Callable[[random.Random], str], tuple[str, ...]]] = {
    "us_ssn": (made.ssn, ("SSN {}", "social security # {}", "{}, born in Ohio", "his number ({})", "name,ssn\nx,{}")),
    "uk_nino": (made.nino, ("NI number: {}", "National Insurance No. {}", "nino={}")),
    "fr_nir": (made.nir, ("NIR {}", "sécurité sociale n° {}", "numéro INSEE : {}")),
    "es_dni": (made.dni, ("DNI {}", "documento nacional de identidad {}", "D.N.I. {}", "N.I.F.: {}")),
    "es_nie": (nie, ("NIE {}", "con NIE: {}", "documento {}")),
    "nl_bsn": (made.bsn, ("BSN {}", "burgerservicenummer: {}", "sofinummer {}")),
    "br_cpf": (made.cpf, ("CPF {}", "o {} consta", "cpf:{}")),
    "in_aadhaar": (aadhaar, ("Aadhaar {}", "UIDAI no. {}", "आधार {}")),
    "de_steuer_id": (steuer, ("Steuer-ID {}", "IdNr. {}", "steuerliche Identifikationsnummer: {}", "TIN {}")),
    "be_niss": (niss, ("NISS {}", "rijksregisternummer {}", "numéro de registre national {}")),
    "fi_hetu": (hetu, ("hetu {}", "henkilötunnus: {}", "HETU:{}")),
    "it_codice_fiscale": (codice, ("codice fiscale {}", "C.F. {}", "nato a Roma, {}, residente", "CF:{}")),
    "pt_nif": (nif, ("NIF {}", "contribuinte n.º {}", "NIF: {}")),
    "cn_resident_id": (chinese, ("身份证号{}", "公民身份号码：{}。", "张三，{}，男", "id={}")),
    "ch_ahv": (swiss, ("AHV-Nr. {}", "{} (Versicherte)", "numéro AVS: {}")),
    "pl_pesel": (pesel, ("PESEL {}", "PESEL: {}", "nr PESEL {}")),
    "se_personnummer": (personnummer, ("personnummer {}", "Personnr: {}", "pnr {}")),
    "ca_sin": (canadian, ("SIN {}", "Social Insurance Number {}", "NAS : {}")),
    "au_tfn": (australian, ("TFN {}", "Tax File Number: {}", "tfn {}")),
}
#: Country, forms (`#`: a digit from 2 to 8), and the text around them.
PHONES: tuple[tuple[str, str, str], ...] = (
    ("DE", "030 / ########|(030) ########|+49 30 ########|+49 (0)89 / ######|0171/#######",
     "{}|Büro {}, Mo-Fr|({}; abends)"),
    ("DE", "030-########|0171 #######|089 ######-##", "Tel. {}|Rufnummer: {}|Handy {}|Fon {}"),
    ("AT", "+43 1 #######|(01) #######|0664 #######", "Telefon {}|Mobil: {}"),
    ("CH", "+41 44 ### ## ##|044 ### ## ##", "Tel. {}|Telefon: {}"),
    ("FR", "+33 6 ## ## ## ##|06 ## ## ## ##|01.##.##.##.##", "Tél. : {}|téléphone {}|portable {}"),
    ("GB", "+44 20 7### ####|(020) 7### ####|07### ######", "phone {}|mob: {}|Tel: {}"),
    ("US", "(4##) 3##-####|4##-3##-####|+1 4## 3## ####|1-8##-3##-####", "{}|call {} now|text {}!"),
    ("US", "4##.3##.####|4## 3## ####", "phone {}|cell: {}|call {} now"),
    ("CN", "+86 138 #### ####|138########|010-6#######", "电话：{}|手机{}|联系电话 {}|致电{}"),
    ("JP", "+81 3 #### ####|03-####-####|090-####-####", "電話：{}|電話番号 {}|TEL {}"),
    ("RU", "+7 495 ###-##-##|8 (495) ###-##-##", "тел. {}|телефон: {}"),
    ("IN", "+91 98### #####|98### #####", "mobile {}|Phone: {}"),
    ("ES", "+34 6## ### ###|6## ### ###", "teléfono {}|móvil: {}"),
    ("BR", "+55 11 9####-####|(11) 9####-####", "celular {}|telefone: {}"),
    ("IT", "+39 06 ########|06 ########", "telefono {}|cell. {}|tel: {}"),
)  # fmt: skip
EMAILS = {
    "ASCII": "jane.doe+x@firma.de|o'hara@firma.ie|x_y-z@a-b.co.uk|UPPER@FIRMA.COM|1234@qq.com|a@b.museum|"
    "j@xn--mller-kva.de",
    "Latin": "Müller@firma.de|jörg.müller@firma.de|josé.garcía@correo.es|łukasz@poczta.pl|øyvind@firma.no|"
    "jane@müller.de|Mu\u0308ller@firma.de|şükrü.öz@sirket.com.tr",
    "Cyrillic": "иван@почта.рф|иван.петров@firma.ru|ivan@пример.рф", "Greek": "νίκος@firma.gr|nikos@παράδειγμα.ελ",
    "Chinese": "zhang@firma.cn|zhang.wei@例子.中国|li@公司.cn", "Arabic": "علي@firma.sa", "Devanagari": "राम@firma.in",
}  # fmt: skip
AROUND = (
    "{}", "({})", "Mail:{}.", "<{}>, 2019", 'mailto="{}"', "{}; or call", "a,{}\n", "x:{}|y", "“{}”", "*{}*",
    "邮箱：{}。",
)  # fmt: skip
KEYS: dict[str, Callable[[random.Random], str]] = {
    "sk-": lambda rng: "sk-" + made.token(rng, 48), "sk-ant-": lambda rng: f"sk-ant-api03-{made.token(rng, 93)}AA",
    "sk-proj-": lambda rng: "sk-proj-" + made.token(rng, 64), "sk- hex": lambda rng: "sk-" + made.hexes(rng, 32),
    "github": lambda rng: "ghp_" + made.token(rng, 36), "google": lambda rng: "AIza" + made.token(rng, 35),
    "npm": lambda rng: "npm_" + made.token(rng, 36), "gitlab": lambda rng: "glpat-" + made.token(rng, 20),
    "slack": lambda rng: f"xoxb-{made.digits(rng, 12)}-{made.token(rng, 24)}",
    "stripe": lambda rng: "sk_live_" + made.token(rng, 24), "hugging face": lambda rng: "hf_" + made.token(rng, 34),
    "aws": lambda rng: "AKIA" + made.token(rng, 16, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"),
}  # fmt: skip
#: Look-alikes; `#` is a digit from 2 to 8, `%` a hexadecimal one.
NEGATIVES = {
    "form": "colour code 3##-##-####|1##-##-#### widgets|转发@weibo.com|batch of 0711/######|key 4##-3##-#### opens it",
    "part": "part no 1##-##-####|P/N: 1##-##-####|item #1##-##-####|Serial number 1##-##-####|model 1##-##-####|"
    "order no. 1##-##-####|invoice 1##-##-####|catalog no. 1##-##-####|SKU 1##-##-####|Artikelnr. 1##-##-####",
    "SSN": "SSN 000-##-####|SSN 666-##-####|SSN 9##-##-####|1##-00-####|1##-##-0000|1##-##-#####|1##-#-#####",
    "date": "2024-03-0# 12:3#:4#|0#/0#/2024|tel 2024-01-1#|1949-10-0#|202403###########|#.#.2024 - #.#.2025",
    "number": "St.-Nr. 021/###/#####|Az. 0123/######|012/2019|(030) ####|Drucksache 19/#####|§ 030/#|/030/########/x|"
    "pi = 3.14159265358979#####|"
    "########## Einwohner|# ### ### €|ISBN 978-3-##-######-#|ISSN ####-###X|doi:10.1###/########",
    "mail": "user@host|a@b|@user|"
    "me@example.org|icon@2x.png|git@github.com:a/b|foo@bar@baz|x@localhost|@media.screen|f@g(x)|"
    "关注@微博|转发@张三：你好|#@#.#|@例子|name@v#.#.#|npm i @types/node@1#.#.#|a@.com|.a@b.com",
    "ip": "version 9#.2.3.4|"
    "v9#.1.2.##|OID 1.3.6.1.4.1.####|§ 3#.2.1.4|1##.2##.3##.4##|#.#.#.#|00:1b:44:11:3a:b#|a::b|std::x",
    "key": "sk-estimator-doc-link-container-##|sk-toggleable__label-arrow-##|sk-fading-circle-#-of-##-elements-shown|"
    "sk-ant-your-api-key-goes-here-##|sk-xxxxxxxxxxxxxxxxxxxxxxxx|commit %%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%|"
    "uuid %%%%%%%%-%%%%-4%%%-a%%%-%%%%%%%%%%%%|md5 = %%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%|get_secret_key_from_vault_##()|"
    "ghp_short##|AKIAIOSFODNN7EXAMPLE|eyJhbGci.%%%%.%%%%|data:image/png;base64,iVBORw0KGgo%%%%%%%%%%%%%%%%%%%%%%%%%%%%",
}  # fmt: skip


def filled(rng: random.Random, form: str) -> str:
    digits = {"#": "2345678", "%": "0123456789abcdef"}
    return "".join(rng.choice(digits[c]) if c in digits else c for c in form)


def spoilt(rng: random.Random, value: str) -> str:
    """The value with its last digit or letter changed by one: no check passes."""
    group = "0123456789" if value[-1].isdigit() else "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return value[:-1] + group[(group.index(value[-1]) + 1) % len(group)]


def cases(seed: int = 9) -> Iterator[Case]:
    rng = random.Random(seed)
    for script, addresses in EMAILS.items():
        for address in addresses.split("|"):
            yield from (Case(around.format(address), "email", script, address) for around in AROUND)
    for country, forms, arounds in PHONES:
        for form in forms.split("|"):
            for around in arounds.split("|"):
                number = filled(rng, form)
                yield Case(around.format(number), "phone", country, number)
    for rule, (value, arounds) in NATIONAL.items():
        for around in arounds:
            for _ in range(3):
                number = value(rng)
                yield Case(around.format(number), "national", rule, number)
        if rule not in ("us_ssn", "uk_nino"):  # these have no check digit
            for _ in range(4):
                yield Case(rng.choice(arounds).format(spoilt(rng, value(rng))), "national", "wrong check digit", None)
    for issuer, value in KEYS.items():
        for around in ("{}", "my key is {}.", "'{}',", "API_KEY={}\n", "curl -H x:{} y", "密钥{}。"):
            key = value(rng)
            yield Case(around.format(key), "key", issuer, key)
    for kind, value in (("iban", made.iban), ("card", made.card)):
        for around in ("Konto {}", "card: {}", "bitte auf {} zahlen", "({})", "支付 {}。", "x\t{}\ty") * 5:
            text = value(rng)
            yield Case(around.format(text), kind, text[:2] if kind == "iban" else "", text)
            yield Case(around.format(spoilt(rng, text)), kind, "wrong check digit", None)
    for around in ("{}", "from {}:443", "[{}]", "x={};", "({})", "主机{}。") * 3:
        for value in (made.ipv4, made.ipv6):
            address = value(rng)
            if not (value is made.ipv6 and ":4" in around):
                yield Case(around.format(address), "ip", "", address)
    for name, forms in NEGATIVES.items():
        for form in forms.split("|"):
            yield from (Case(before + filled(rng, form), "", name, None) for before in ("", "see ", "(siehe) "))


def measured(given: list[Case]) -> tuple[dict[str, tuple[int, int, float, float]], dict[str, float]]:
    """By kind: values, spans found, precision, recall; a span counts where it is exact. By kind and country: recall."""
    texts = pa.record_batch({"text": pa.array([case.text for case in given], pa.large_string())})
    planted, found, right = Counter[str](), Counter[str](), Counter[str]()
    for case, row in zip(given, annotate(texts, PiiParams()).to_pylist(), strict=True):
        truth = f"national/{case.country}" if case.kind == "national" else case.kind
        planted.update([case.kind, f"{case.kind} {case.country}"] if case.value is not None else [])
        for span in row["spans"]:
            kind = span["reason"].partition("/")[0]
            found[kind] += 1
            reason = span["reason"] if kind == "national" else kind
            if (reason, case.text[span["start_cp"] : span["end_cp"]]) == (truth, case.value):
                right.update([kind, f"{kind} {case.country}"])
    kinds = {kind for kind in planted if " " not in kind}
    rates = {k: (planted[k], found[k], right[k] / max(1, found[k]), right[k] / planted[k]) for k in sorted(kinds)}
    return rates, {name: right[name] / planted[name] for name in sorted(planted) if " " in name}


def wrong(given: list[Case]) -> Iterator[str]:
    """Cases that are not found exactly, for a reader."""
    texts = pa.record_batch({"text": pa.array([case.text for case in given], pa.large_string())})
    for case, row in zip(given, annotate(texts, PiiParams()).to_pylist(), strict=True):
        spans = [(span["reason"], case.text[span["start_cp"] : span["end_cp"]]) for span in row["spans"]]
        if [text for _, text in spans] != ([case.value] if case.value is not None else []):
            yield f"{case.kind} {case.country}: {case.text!r} {spans}"


if __name__ == "__main__":
    everything = list(cases())
    print(len(everything), "cases,", sum(case.value is None for case in everything), "without")
    table, countries = measured(everything)
    for kind, (values, spans, precision, recall) in table.items():
        print(f"| `{kind}` | {values} | {spans} | {precision:.3f} | {recall:.3f} |")
    print({name: round(rate, 3) for name, rate in countries.items() if rate < 1})
    print(*wrong(everything), sep="\n")
