"""exp, tanh and expm1 as plain C that compilers vectorise, for models that ask for ``math="vector"``.

libm's functions are calls, one number each. These have no branch and no call, so a loop over them becomes vector
instructions under strict flags, too; errors are at most those stated (``tests/test_vector.py`` measures them). Infinite
and NaN arguments, overflow, underflow and denormal results are as IEEE has them.
"""

from __future__ import annotations

import re

#: x = k log 2 + r with |r| <= log(2)/2; e^r is a polynomial (Taylor's, its remainder is below 1e-17); times 2^k in two
#: steps, so that neither overflows while the product does not.
POWER = """\
static inline double hyad_power_of_2(double k) { /* a whole number from -1022 to 1023 */
  const double shifted = k + (6755399441055744.0 + 1023); /* 1.5*2^52: k + 1023 is in the last bits */
  unsigned long long bits;
  double y;
  memcpy(&bits, &shifted, sizeof bits);
  bits <<= 52;
  memcpy(&y, &bits, sizeof y);
  return y;
}
"""
#: What exp and expm1 begin with.
REDUCED = """\
  const double a = x < -746 ? -746 : x, b = a > 710 ? 710 : a;
  const double k = rint(b*1.4426950408889634), r = b - k*0x1.62e42fefa3800p-1 - k*0x1.ef35793c76730p-45;
  const double r2 = r*r, r4 = r2*r2;
  const double low = (1./2 + r*(1./6)) + r2*(1./24 + r*(1./120));
  const double high = (1./720 + r*(1./5040)) + r2*(1./40320 + r*(1./362880));
  const double top = (1./3628800 + r*(1./39916800)) + r2*(1./479001600 + r*(1./6227020800));"""
EXP = """\
static inline double hyad_exp(double x) { /* at most 1 unit in the last place off */
REDUCED
  const double y = 1 + (r + r2*(low + r4*(high + r4*top)));
  const double half = rint(0.5*k);
  return y*hyad_power_of_2(half)*hyad_power_of_2(k - half);
}
""".replace("REDUCED", REDUCED)
EXPM1 = """\
static inline double hyad_expm1(double x) { /* at most 3 units in the last place off */
REDUCED
  const double y = r + r2*(low + r4*(high + r4*top));
  const double up = k < -200 ? -200 : k, half = rint(0.5*up);
  const double p = hyad_power_of_2(half), q = hyad_power_of_2(up - half), m = p*q;
  return x == 0 ? x : up > 60 ? (y + 1)*p*q - 1 : y*m + (m - 1);
}
""".replace("REDUCED", REDUCED)
TANH = """\
static inline double hyad_tanh(double x) { /* at most 3 units in the last place off */
  const double a = fabs(x), b = a > 22 ? 22 : a, t = hyad_expm1(2*b), y = t/(t + 2);
  return x < 0 ? -y : x == 0 ? x : y;
}
"""
KERNELS = {"exp": (POWER, EXP), "expm1": (POWER, EXPM1), "tanh": (POWER, EXPM1, TANH)}
_CALL = re.compile(rf"(?<!\w)({'|'.join(KERNELS)})\(")


def vectorised(form: str, support: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """A primitive's C text and the functions that it calls, with libm's replaced by these."""
    wanted: dict[str, None] = {}
    for text in (form, *support):
        for name in _CALL.findall(text):
            wanted.update(dict.fromkeys(KERNELS[name]))

    def own(text: str) -> str:
        return _CALL.sub(r"hyad_\1(", text)

    return own(form), (*wanted, *map(own, support))
