/* The recursive network by hand: the states are put down in postorder, and taken up again from the end. */
#include <math.h>
#include "tree.h"

double treernn(const struct tree *t, double a, double b, double c)
{
    if (t->leaf) return tanh(a*t->x);
    return tanh(b*treernn(t->left, a, b, c) + c*treernn(t->right, a, b, c));
}

struct node { double y; const struct node *left, *right; };

static const struct node *there(const struct tree *t, double a, double b, double c, struct node **free)
{
    const struct node *l = t->leaf ? 0 : there(t->left, a, b, c, free), *r = t->leaf ? 0 : there(t->right, a, b, c, free);
    struct node *n = (*free)++;
    n->left = l, n->right = r;
    n->y = tanh(t->leaf ? a*t->x : b*l->y + c*r->y);
    return n;
}

static void back(const struct tree *t, const struct node *n, double bar, double b, double c, double *g)
{
    bar *= 1 - n->y*n->y;
    if (t->leaf) {
        g[0] += bar*t->x;
    } else {
        g[1] += bar*n->left->y;
        g[2] += bar*n->right->y;
        back(t->left, n->left, bar*b, b, c, g);
        back(t->right, n->right, bar*c, b, c, g);
    }
}

void treernn_grad(const struct tree *t, double a, double b, double c, double *g, void *work)
{
    struct node *free = work;
    g[0] = g[1] = g[2] = 0;
    back(t, there(t, a, b, c, &free), 1, b, c, g);
}
