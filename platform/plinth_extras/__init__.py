"""The ring: training and serving beside the main path: federated and private training, distillation, compressed forms,
roofline, proxies, further sinks, logins. Found through entry points; nothing of the core imports it.
"""
