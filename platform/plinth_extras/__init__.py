"""The ring: training and serving next to the main path. Found through entry points; nothing of the core imports it.

    proxies/    product proxies: generated items, checked by code
"""
