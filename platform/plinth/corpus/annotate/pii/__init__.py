"""Personal data and secrets: spans with replacements.

hits      What the rules for personal data have in common: a hit, its kind, and check digits of published schemes.
keys      Keys, tokens and passwords: those that say what they are, and random strings that a name calls a secret.
names     Names and addresses of people, by a spaCy pipeline of the user (the extra `ner`).
national  Numbers that states give to people, each with its form, its check digits and the words that must stand n
network   E-mail addresses, IP addresses, and passwords inside URLs.
numbers   Payment cards, bank accounts and telephone numbers.
pii       Spans of personal data and secrets, with replacements.
"""
