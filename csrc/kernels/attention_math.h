// exp and tanh of vectors of float32, for softmax.
#pragma once

namespace aegis::kernels {

// Polynomials fitted here for least relative error (Lawson's iteration), exp after the reduction of
// Cody and Waite. `Lanes` has Floats and
//   kFloats                    floats in a Floats
//   all(x), first(v)           a float in all places; the float in the first
//   load(p), store(p, v)
//   add, sub, mul, div, fma(a, b, c) = a · b + c, max(a, b): b where either is NaN
//   largest(v), total(v)       over the places; of NaN, largest may leave out anything
//   round(v)                   to whole numbers
//   power(v)                   2^v of whole numbers in [-126, 127]
//   below(v, limit, a, b)      a where v < limit, b elsewhere and where v is NaN
//   absolute(v), signed_as(v, sign)

constexpr float kNoScore = -__builtin_inff();

/// exp(x) to one unit in the last place for x <= 0; 0 below -87.3; NaN for NaN.
template <class Lanes>
inline typename Lanes::Floats exponential(typename Lanes::Floats x) {
  using Floats = typename Lanes::Floats;
  constexpr float kSmallest = -87.33654f;  // the logarithm of 2^-126
  const Floats inside = Lanes::max(Lanes::all(kSmallest), x);
  const Floats n = Lanes::round(Lanes::mul(inside, Lanes::all(1.44269504f)));
  // ln 2 in two parts, so that n · ln 2 is exact to more than float32.
  Floats r = Lanes::fma(n, Lanes::all(-0.693359375f), inside);
  r = Lanes::fma(n, Lanes::all(2.12194440e-4f), r);
  Floats p = Lanes::fma(Lanes::all(1.381459848e-3f), r, Lanes::all(8.368717017e-3f));
  p = Lanes::fma(p, r, Lanes::all(4.166838806e-2f));
  p = Lanes::fma(p, r, Lanes::all(1.666652063e-1f));
  p = Lanes::fma(p, r, Lanes::all(4.999999345e-1f));
  p = Lanes::fma(p, Lanes::mul(r, r), r);
  p = Lanes::add(p, Lanes::all(1));
  return Lanes::below(x, Lanes::all(kSmallest), Lanes::all(0), Lanes::mul(p, Lanes::power(n)));
}

/// cap · tanh(x / cap), to a few units in the last place.
template <class Lanes>
inline typename Lanes::Floats soft_cap(typename Lanes::Floats x, float cap) {
  using Floats = typename Lanes::Floats;
  const Floats y = Lanes::div(x, Lanes::all(cap)), size = Lanes::absolute(y);
  // A polynomial where y is small and 1 - exp(-2y) would cancel.
  const Floats z = Lanes::mul(y, y);
  Floats p = Lanes::fma(Lanes::all(-5.717042340e-3f), z, Lanes::all(2.065058493e-2f));
  p = Lanes::fma(p, z, Lanes::all(-5.374349738e-2f));
  p = Lanes::fma(p, z, Lanes::all(1.333149128e-1f));
  p = Lanes::fma(p, z, Lanes::all(-3.333328392e-1f));
  const Floats small = Lanes::fma(Lanes::mul(p, z), y, y);
  const Floats one = Lanes::all(1);
  const Floats e = exponential<Lanes>(Lanes::mul(size, Lanes::all(-2)));
  const Floats large = Lanes::div(Lanes::sub(one, e), Lanes::add(one, e));
  return Lanes::mul(Lanes::below(size, Lanes::all(0.625f), small, Lanes::signed_as(large, y)),
                    Lanes::all(cap));
}

}  // namespace aegis::kernels
