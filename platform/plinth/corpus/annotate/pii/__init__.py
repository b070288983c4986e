"""Personal data and secrets: spans with replacements.

    pii       the annotator: parameters, scan, spans; names and addresses of people, found by the user's spaCy pipeline
              (the extra `ner`)
    network   e-mail addresses, IP addresses, passwords inside URLs; keys, tokens and passwords
    numbers   the record of a match, and check digits; payment cards, bank accounts, phone numbers
    national  national identity, tax and insurance numbers
"""
