"""Personal data and secrets: spans with replacements.

pii       the annotator: parameters, scan, spans
hits      a hit, and check digits of published schemes
network   e-mail addresses, IP addresses, passwords inside URLs
numbers   payment cards, bank accounts, telephone numbers
national  national identity, tax and insurance numbers
keys      keys, tokens and passwords
names     names and addresses of people, by the user's spaCy pipeline (the extra `ner`)
"""
