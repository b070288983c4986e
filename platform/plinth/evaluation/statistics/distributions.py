"""Distribution functions as scipy has them, for the intervals of this package.

scipy is imported at the first call: it takes half a second, which every command that loads the pipeline would pay.
"""

from __future__ import annotations


def normal_quantile(p: float) -> float:
    """z with P(Z <= z) = p."""
    from scipy.special import ndtri

    return float(ndtri(p))


def normal_cdf(z: float) -> float:
    """P(Z <= z)."""
    from scipy.special import ndtr

    return float(ndtr(z))


def student_quantile(freedom: float, p: float) -> float:
    """t with P(T <= t) = p."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, p))


def student_cdf(freedom: float, t: float) -> float:
    """P(T <= t)."""
    from scipy.special import stdtr

    return float(stdtr(freedom, t))


def beta_quantile(a: float, b: float, p: float) -> float:
    """x with P(X <= x) = p, of Beta(a, b)."""
    from scipy.special import betaincinv

    return float(betaincinv(a, b, p))


def binomial_cdf(k: int, n: int, p: float) -> float:
    """P(X <= k), of n draws with probability p."""
    from scipy.special import bdtr

    return float(bdtr(k, n, p))


def gamma_tail(a: float, x: float) -> float:
    """P(X > x), of Gamma(a, 1)."""
    from scipy.special import gammaincc

    return float(gammaincc(a, x))
