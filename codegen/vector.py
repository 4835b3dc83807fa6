"""exp, expm1, log, log1p, tanh, sin, cos and tan as plain C that compilers vectorise, for models that ask for
``math="vector"``.

libm's functions are calls, one number each. These have no branch and no call, so a loop over them becomes vector
instructions under strict flags, too; where a number waits for the one before, and outside of loops, libm's are quicker
and stay (``calls_abreast`` in ``apart.py``). Errors are at most those stated (``tests/test_vector.py`` measures them).
Infinite and NaN arguments, overflow, underflow and denormal results are as IEEE has them. In single precision they
compute in double precision and round once.

Sine, cosine and tangent are right up to ``FAR``. A loop notes whether an argument was beyond, and is run again with the
C library's functions then (``statements.py``): what is checked in every number, and hardly ever so, is no branch in the
loop. Where a loop cannot be run again they are the C library's in the first place.
"""

from __future__ import annotations

import re

END = "}\n"
#: Nothing in these functions may be reordered, errors that are subtracted again least of all: where flags allow that,
#: compilers have vectors of libm's functions.
ORDERED = "#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__)"


def in_order(text: str) -> str:
    """The C text of one of libm's functions, which is libm's own where sums may be reordered."""
    head, _, body = text.partition("\n")
    call = head.partition("hyad_")[2].partition("(")[0]
    return f"{head}\n{ORDERED}\n    return {call}(x);\n#else\n{body[: -len(END)]}#endif\n{END}"


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
#: To the nearest whole number: without an instruction for it, which plain x86-64 has not.
NEAREST = """\
static inline double hyad_nearest(double x) { /* |x| < 2^51 */
    return (x + 6755399441055744.0) - 6755399441055744.0;
}
"""
#: What exp and expm1 begin with; 2^1082 is too large, and 2^-1082 too small. One condition: of two, gcc may make a
#: loop that it does not vectorise.
REDUCED = """\
  const double b = fabs(x) > 750 ? copysign(750, x) : x;
  const double k = hyad_nearest(b*1.4426950408889634), r = b - k*0x1.62e42fefa3800p-1 - k*0x1.ef35793c76730p-45;
  const double r2 = r*r, r4 = r2*r2;
  const double low = (1./2 + r*(1./6)) + r2*(1./24 + r*(1./120));
  const double high = (1./720 + r*(1./5040)) + r2*(1./40320 + r*(1./362880));
  const double top = (1./3628800 + r*(1./39916800)) + r2*(1./479001600 + r*(1./6227020800));"""
EXP = in_order(
    """\
static inline double hyad_exp(double x) { /* at most 1 unit in the last place off */
REDUCED
    const double y = 1 + (r + r2*(low + r4*(high + r4*top)));
    const double half = hyad_nearest(0.5*k);
    return y*hyad_power_of_2(half)*hyad_power_of_2(k - half);
}
""".replace("REDUCED", REDUCED)
)
EXPM1 = in_order(
    """\
static inline double hyad_expm1(double x) { /* at most 3 units in the last place off */
REDUCED
    const double y = r + r2*(low + r4*(high + r4*top));
    const double half = hyad_nearest(0.5*k);
    const double p = hyad_power_of_2(half), q = hyad_power_of_2(k - half), one = hyad_power_of_2(half - k);
    return copysign((y*p + (p - one))*q, x);
}
""".replace("REDUCED", REDUCED)
)
TANH = """\
static inline double hyad_tanh(double x) { /* at most 3 units in the last place off */
    const double t = hyad_expm1(-2*fabs(x));
    return copysign(t/(t + 2), x);
}
"""
FAR = 2.0**23
#: x = k pi/2 + r + low with |r| <= pi/4: k has at most 23 bits and the parts of pi/2 that it meets first 30, so that
#: their products are exact, and what the subtractions lose is in ``low``. The polynomials are the best ones on that
#: interval, 2^-57 and 2^-63 off. Sine and cosine of one argument share all of it but the last lines.
WAVE = """\
/* sin(x + quarters*pi/2) */
static inline double hyad_wave(unsigned long long *far, double x, unsigned long long quarters) {
#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__)
  (void)far;
  return quarters ? cos(x) : sin(x);
#else
  const double shifted = x*0x1.45f306dc9c883p-1 + 6755399441055744.0, k = shifted - 6755399441055744.0; /* 1.5*2^52 */
  const double a = x - k*0x1.921fb54000000p+0, b = k*0x1.10b4611800000p-30, d = k*0x1.313198a000000p-61;
  const double c = a - b, c1 = c - a, r = c - d, r1 = r - c;
  const double low = ((a - (c - c1)) - (b + c1)) + ((c - (r - r1)) - (d + r1)) - k*0x1.701b839a25205p-92;
  const double z = r*r, z2 = z*z, z4 = z2*z2, half = 0.5*z, w = 1 - half;
  const double s = (-0x1.5555555555548p-3 + z*0x1.111111110f7d0p-7)
    + z2*(-0x1.a01a019bfdee8p-13 + z*0x1.71de3567d2fe8p-19) + z4*(-0x1.ae5e5a914a050p-26 + z*0x1.5d8fd19927e87p-33);
  const double t = (0x1.555555555554bp-5 - z*0x1.6c16c16c14f91p-10)
    + z2*(0x1.a01a019c844d5p-16 - z*0x1.27e4f7eac3511p-22) + z4*(0x1.1ee9d7b3ed5a6p-29 - z*0x1.8fa4998815fbap-37);
  const double sine = r + (low*w + r*z*s), cosine = w + ((1 - w - half) + (z2*t - r*low));
  unsigned long long turn, even, odd, sign, size, bits;
  double y;
  memcpy(&turn, &shifted, sizeof turn); /* k is in the last bits */
  memcpy(&even, &sine, sizeof even);
  memcpy(&odd, &cosine, sizeof odd);
  memcpy(&sign, &r, sizeof sign);
  memcpy(&size, &x, sizeof size);
  turn += quarters;
  even |= sign & 0x8000000000000000; /* of -0.0 */
  bits = (even ^ ((even ^ odd) & -(turn & 1))) ^ (turn & 2) << 62;
  memcpy(&y, &bits, sizeof y);
  size &= 0x7fffffffffffffff;
  *far |= (0x4160000000000000 - size) & (size - 0x7ff0000000000000); /* the first bit: 2^23 < |x| < inf */
  return y;
#endif
}
"""
SIN = """\
static inline double hyad_sin(unsigned long long *far, double x) { /* at most 1 unit in the last place off */
    return hyad_wave(far, x, 0);
}
"""
COS = """\
static inline double hyad_cos(unsigned long long *far, double x) { /* at most 1 unit in the last place off */
    return hyad_wave(far, x, 1);
}
"""
TAN = """\
static inline double hyad_tan(unsigned long long *far, double x) { /* at most 3 units in the last place off */
    return hyad_sin(far, x)/hyad_cos(far, x);
}
"""
#: x = 2^k m with m between the roots of 1/2 and 2, f = m - 1, s = f/(2 + f): log m = f - f^2/2 + s (f^2/2 + z P(z))
#: with z = s^2, P the best polynomial on that interval, 2^-57 off. What is not a positive number has bits of its own.
LOG = in_order("""\
static inline double hyad_log(double x) { /* at most 1 unit in the last place off */
    const unsigned long long one = 0x3ff0000000000000, root = 0x3fe6a09e667f3bcd, top = 0x7ff0000000000000;
    unsigned long long bits, size, small, zero, beyond, below, power, rest;
    double scaled, m, k, y;
    memcpy(&bits, &x, sizeof bits);
    size = bits & 0x7fffffffffffffff;
    zero = (size - 1) >> 63;
    small = (size - 0x0010000000000000) >> 63; /* zeros and denormal numbers: times 2^54 */
    beyond = (top - 1 - size) >> 63; /* infinities and NaN */
    below = bits >> 63; /* negative numbers */
    power = one + (small*54 << 52);
    memcpy(&scaled, &power, sizeof scaled);
    scaled *= x;
    memcpy(&power, &scaled, sizeof power);
    power += one - root;
    rest = (power & 0x000fffffffffffff) + root;
    power = power >> 52 | 0x4330000000000000; /* 2^52 + 1023 + k */
    memcpy(&m, &rest, sizeof m);
    memcpy(&k, &power, sizeof k);
    power = 0x4330000000000000 + 1023 + small*54;
    memcpy(&y, &power, sizeof y);
    k -= y;
    const double f = m - 1, s = f/(2 + f), z = s*s, z2 = z*z, half = 0.5*f*f;
    const double p = z*((0x1.5555555555558p-1 + z*0x1.99999999952d7p-2)
        + z2*((0x1.2492492df281ap-2 + z*0x1.c71c62e3f11e6p-3)
        + z2*((0x1.7462b51cb66b1p-3 + z*0x1.39fe51a7c18f9p-3) + z2*0x1.2b5900de53b32p-3)));
    y = k*0x1.62e42fefa3800p-1 - ((half - (s*(half + p) + k*0x1.ef35793c76730p-45)) - f);
    memcpy(&rest, &y, sizeof rest);
    rest = (rest & (beyond + zero - 1)) | (bits & -beyond) | (0xfff0000000000000 & -zero);
    rest |= 0x7ff8000000000000 & -(below & ~zero);
    memcpy(&y, &rest, sizeof y);
    return y;
}
""")
#: With u = 1 + x rounded: log u + (x - (u - 1))/u.
LOG1P = in_order("""\
static inline double hyad_log1p(double x) { /* at most 2 units in the last place off */
    const double u = 1 + x, lost = (x - (u - 1))/u;
    unsigned long long size, rest;
    double y;
    memcpy(&size, &u, sizeof size);
    memcpy(&rest, &lost, sizeof rest);
    size &= 0x7fffffffffffffff;
    rest &= (((size - 1) | (0x7fefffffffffffff - size)) >> 63) - 1; /* nothing of zero, infinities and NaN */
    memcpy(&y, &rest, sizeof y);
    return copysign(hyad_log(u) + y, x);
}
""")
KERNELS = {
    "exp": (POWER, NEAREST, EXP),
    "expm1": (POWER, NEAREST, EXPM1),
    "log": (LOG,),
    "log1p": (LOG, LOG1P),
    "tanh": (POWER, NEAREST, EXPM1, TANH),
    "sin": (WAVE, SIN),
    "cos": (WAVE, COS),
    "tan": (WAVE, SIN, COS, TAN),
}
WAVES = ("sin", "cos", "tan")
_CALL = re.compile(rf"(?<!\w)({'|'.join(KERNELS)})(f?)\(")
_WATCHED = re.compile(rf"(?<!\w)hyad_((?:{'|'.join(WAVES)})f?)\(&\w+, ")


def vectorised(form: str, support: tuple[str, ...], far: str | None = None) -> tuple[str, tuple[str, ...]]:
    """A primitive's C text and the functions that it calls, with libm's replaced by these.

    ``far`` is the variable that notes arguments beyond ``FAR``, where there is one.
    """
    wanted: dict[str, None] = {}

    def own(text: str, far: str | None = None) -> str:
        def name(found: re.Match[str]) -> str:
            if found[1] in WAVES and far is None:
                return found[0]
            wanted.update(dict.fromkeys(KERNELS[found[1]]))
            if found[2]:
                wanted[single(found[1])] = None
            return f"hyad_{found[1]}{found[2]}(" + (f"&{far}, " if found[1] in WAVES else "")

        return _CALL.sub(name, text)

    texts = [own(text) for text in support]
    return own(form, far), (*wanted, *texts)


def single(name: str) -> str:
    """A function in single precision."""
    far, given = ("unsigned long long *far, ", "far, ") if name in WAVES else ("", "")
    return f"static inline float hyad_{name}f({far}float x) {{\n  return (float)hyad_{name}({given}x);\n}}\n"


def watched(line: str) -> bool:
    """Whether a line of C calls one of the functions that note arguments beyond ``FAR``."""
    return _WATCHED.search(line) is not None


def by_library(line: str) -> str:
    """A line of C with the C library's functions for those."""
    return _WATCHED.sub(r"\1(", line)
