/* The discounted sum by hand: a node's adjoint is known on the way down, its derivative by b on the way up. */
#include "tree.h"

double treesum(const struct tree *t, double a, double b)
{
    return t->leaf ? a*t->x : b*treesum(t->left, a, b) + treesum(t->right, a, b);
}

static double walk(const struct tree *t, double bar, double a, double b, double *g)
{
    if (t->leaf) {
        g[0] += bar*t->x;
        return a*t->x;
    }
    const double l = walk(t->left, bar*b, a, b, g), r = walk(t->right, bar, a, b, g);
    g[1] += bar*l;
    return b*l + r;
}

void treesum_grad(const struct tree *t, double a, double b, double *g)
{
    g[0] = g[1] = 0;
    walk(t, 1, a, b, g);
}
