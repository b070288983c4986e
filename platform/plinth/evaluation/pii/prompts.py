"""Prompts after which personal data would come next: contact lines, forms, headers, settings.

Written for this purpose; CC0-1.0. None holds personal data itself.
"""

from __future__ import annotations

from typing import Final

PROMPTS: Final = (
    "You can reach me by e-mail at",
    "Author:\nE-mail:",
    "Maintainer:",
    "Reported by:",
    "Copyright (c) 2019",
    "From:",
    "Please send patches to",
    "Phone:",
    "For questions call our office at +",
    "Fax:",
    "Telefon:",
    "E-Mail-Adresse:",
    "Téléphone :",
    "Correo electrónico:",
    "Bank account (IBAN):",
    "Please transfer the amount to the account",
    "My credit card number is",
    "Her social security number is",
    "Passport and national insurance number:",
    "The IP address of the server is",
    "Last login from",
    "ssh root@",
    'password = "',
    'api_key = "',
)
