"""`python -m plinth.kernels`: compile the kernels ahead of their first use."""

from plinth.kernels.build import library

if __name__ == "__main__":
    library()
