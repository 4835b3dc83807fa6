/* The trees of the hand-written code. */
struct tree { int leaf, label; double x; const struct tree *left, *right; };
