/* The Tree-LSTM by hand: what a node computes is put down in a tree of its own, which the way back reads. */
#include <math.h>
#include <stddef.h>
#include "tree.h"

struct state { double h, c, loss; };
struct node { double i, fl, fr, o, u, t, h, c, p[5]; const struct node *left, *right; };

static double sigmoid(double x) { return 1/(1 + exp(-x)); }

static double nll(const double *w, double h, int label)
{
    double sum = 0;
    for (int k = 0; k < 5; k++) sum += exp(w[20 + k]*h + w[25 + k]);
    return log(sum) - (w[20 + label]*h + w[25 + label]);
}

static struct state state(const struct tree *t, const double *w)
{
    if (t->leaf) {
        const double i = sigmoid(w[0]*t->x + w[1]), o = sigmoid(w[2]*t->x + w[3]), u = tanh(w[4]*t->x + w[5]);
        const double c = i*u, h = o*tanh(c);
        return (struct state){h, c, nll(w, h, t->label)};
    }
    const struct state l = state(t->left, w), r = state(t->right, w);
    const double i = sigmoid(w[6]*l.h + w[7]*r.h + w[8]);
    const double fl = sigmoid(w[9]*l.h + w[10]*r.h + w[13]), fr = sigmoid(w[11]*l.h + w[12]*r.h + w[13]);
    const double o = sigmoid(w[14]*l.h + w[15]*r.h + w[16]), u = tanh(w[17]*l.h + w[18]*r.h + w[19]);
    const double c = i*u + fl*l.c + fr*r.c, h = o*tanh(c);
    return (struct state){h, c, nll(w, h, t->label) + l.loss + r.loss};
}

double treelstm(const struct tree *t, const double *w)
{
    return state(t, w).loss;
}

static const struct node *there(const struct tree *t, const double *w, struct node **free)
{
    const struct node *l = t->leaf ? NULL : there(t->left, w, free), *r = t->leaf ? NULL : there(t->right, w, free);
    struct node *n = (*free)++;
    n->left = l, n->right = r;
    if (t->leaf) {
        n->i = sigmoid(w[0]*t->x + w[1]);
        n->o = sigmoid(w[2]*t->x + w[3]);
        n->u = tanh(w[4]*t->x + w[5]);
        n->c = n->i*n->u;
    } else {
        n->i = sigmoid(w[6]*l->h + w[7]*r->h + w[8]);
        n->fl = sigmoid(w[9]*l->h + w[10]*r->h + w[13]);
        n->fr = sigmoid(w[11]*l->h + w[12]*r->h + w[13]);
        n->o = sigmoid(w[14]*l->h + w[15]*r->h + w[16]);
        n->u = tanh(w[17]*l->h + w[18]*r->h + w[19]);
        n->c = n->i*n->u + n->fl*l->c + n->fr*r->c;
    }
    n->t = tanh(n->c);
    n->h = n->o*n->t;
    double sum = 0;
    for (int k = 0; k < 5; k++) sum += n->p[k] = exp(w[20 + k]*n->h + w[25 + k]);
    for (int k = 0; k < 5; k++) n->p[k] /= sum;
    return n;
}

static void back(const struct tree *t, const struct node *n, double h_bar, double c_bar, const double *w, double *g)
{
    for (int k = 0; k < 5; k++) {
        const double d = n->p[k] - (k == t->label);
        h_bar += w[20 + k]*d;
        g[20 + k] += n->h*d;
        g[25 + k] += d;
    }
    c_bar += h_bar*n->o*(1 - n->t*n->t);
    const double o = h_bar*n->t*n->o*(1 - n->o), i = c_bar*n->u*n->i*(1 - n->i), u = c_bar*n->i*(1 - n->u*n->u);
    if (t->leaf) {
        g[0] += i*t->x, g[1] += i, g[2] += o*t->x, g[3] += o, g[4] += u*t->x, g[5] += u;
        return;
    }
    const struct node *l = n->left, *r = n->right;
    const double fl = c_bar*l->c*n->fl*(1 - n->fl), fr = c_bar*r->c*n->fr*(1 - n->fr);
    g[6] += i*l->h, g[7] += i*r->h, g[8] += i;
    g[9] += fl*l->h, g[10] += fl*r->h, g[11] += fr*l->h, g[12] += fr*r->h, g[13] += fl + fr;
    g[14] += o*l->h, g[15] += o*r->h, g[16] += o;
    g[17] += u*l->h, g[18] += u*r->h, g[19] += u;
    back(t->left, l, i*w[6] + fl*w[9] + fr*w[11] + o*w[14] + u*w[17], c_bar*n->fl, w, g);
    back(t->right, r, i*w[7] + fl*w[10] + fr*w[12] + o*w[15] + u*w[18], c_bar*n->fr, w, g);
}

void treelstm_grad(const struct tree *t, const double *w, double *g, void *work)
{
    struct node *free = work;
    for (int k = 0; k < 30; k++) g[k] = 0;
    back(t, there(t, w, &free), 0, 0, w, g);
}
