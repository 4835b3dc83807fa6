/* The naive models and their gradients by hand. */
#include <math.h>
#include <string.h>

/* a row of the weights and of the result; its length */
static void attention_row(const double *restrict q, const double *restrict K, const double *restrict V, long long n,
    long long d, double *restrict w, double *restrict o)
{
    const double scale = 1/sqrt((double)d);
    double most = -INFINITY, sum = 0;
    for (long long j = 0; j < n; j++) {
        double s = 0;
        for (long long c = 0; c < d; c++) s += q[c]*K[j*d + c];
        w[j] = s*scale;
        if (w[j] > most) most = w[j];
    }
    for (long long j = 0; j < n; j++) sum += w[j] = exp(w[j] - most);
    memset(o, 0, d*sizeof(double));
    for (long long j = 0; j < n; j++) {
        w[j] /= sum;
        for (long long c = 0; c < d; c++) o[c] += w[j]*V[j*d + c];
    }
}

/* by all rows, or by those so far */
static double attended(const double *Q, const double *K, const double *V, long long n, long long d, int causal,
    double *work)
{
    double *w = work, *o = work + n, total = 0;
    for (long long i = 0; i < n; i++) {
        attention_row(Q + i*d, K, V, causal ? i + 1 : n, d, w, o);
        for (long long c = 0; c < d; c++) total += o[c]*o[c];
    }
    return total;
}

static void attended_grad(const double *restrict Q, const double *restrict K, const double *restrict V, long long n,
    long long d, int causal, double *restrict out, double *restrict work)
{
    double *w = work, *o = work + n, *dw = o + d, *dQ = out, *dK = out + n*d, *dV = out + 2*n*d;
    const double scale = 1/sqrt((double)d);
    memset(out, 0, 3*n*d*sizeof(double));
    for (long long i = 0; i < n; i++) {
        const long long m = causal ? i + 1 : n;
        attention_row(Q + i*d, K, V, m, d, w, o);
        double mean = 0;
        for (long long j = 0; j < m; j++) {
            double s = 0;
            for (long long c = 0; c < d; c++) {
                s += 2*o[c]*V[j*d + c];
                dV[j*d + c] += 2*o[c]*w[j];
            }
            dw[j] = s;
            mean += s*w[j];
        }
        for (long long j = 0; j < m; j++) {
            const double ds = w[j]*(dw[j] - mean)*scale;
            for (long long c = 0; c < d; c++) {
                dQ[i*d + c] += ds*K[j*d + c];
                dK[j*d + c] += ds*Q[i*d + c];
            }
        }
    }
}

double attention_hand(const double *Q, const double *K, const double *V, long long n, long long d, double *work)
{
    return attended(Q, K, V, n, d, 0, work);
}

void attention_grad_hand(const double *restrict Q, const double *restrict K, const double *restrict V, long long n,
    long long d, double *restrict out, double *restrict work)
{
    attended_grad(Q, K, V, n, d, 0, out, work);
}

double kalman_hand(double q, double r, const double *ys, long long n)
{
    double total = 0, x = 0, v = 0, a = 1, b = 0, c = 1; /* P = (a b; b c) */
    for (long long t = 0; t < n; t++) {
        x += v;
        a += 2*b + c + 0.25*q;
        b += c + 0.5*q;
        c += q;
        const double s = a + r, e = ys[t] - x, g = a/s, h = b/s;
        total -= 0.5*(log(s) + e*e/s);
        x += e*g;
        v += e*h;
        c -= h*b;
        b -= g*b;
        a -= g*a;
    }
    return total;
}

/* two inputs: their tangents go along */
void kalman_grad_hand(double q, double r, const double *ys, long long n, double *out)
{
    double x = 0, v = 0, a = 1, b = 0, c = 1, total[2] = {0, 0};
    double dx[2] = {0}, dv[2] = {0}, da[2] = {0}, db[2] = {0}, dc[2] = {0};
    (void)r;
    for (long long t = 0; t < n; t++) {
        x += v;
        a += 2*b + c + 0.25*q;
        b += c + 0.5*q;
        c += q;
        const double s = 1/(a + r), e = ys[t] - x, g = a*s, h = b*s;
        for (int k = 0; k < 2; k++) {
            const double dq = k == 0;
            dx[k] += dv[k];
            da[k] += 2*db[k] + dc[k] + 0.25*dq;
            db[k] += dc[k] + 0.5*dq;
            dc[k] += dq;
            const double ds = da[k] + (k == 1), dg = (da[k] - g*ds)*s, dh = (db[k] - h*ds)*s;
            total[k] -= 0.5*(ds - 2*e*dx[k]*1 - e*e*s*ds)*s;
            dv[k] += e*dh - dx[k]*h;
            dx[k] += e*dg - dx[k]*g;
            dc[k] -= dh*b + h*db[k];
            db[k] -= dg*b + g*db[k];
            da[k] -= dg*a + g*da[k];
        }
        x += e*g;
        v += e*h;
        c -= h*b;
        b -= g*b;
        a -= g*a;
    }
    out[0] = total[0];
    out[1] = total[1];
}

double n_body_hand(const double *restrict x, const double *restrict m, long long n)
{
    double total = 0;
    for (long long i = 0; i < n; i++) {
        double s = 0;
        for (long long j = 0; j < n; j++) {
            const double u = x[3*i] - x[3*j], v = x[3*i + 1] - x[3*j + 1], w = x[3*i + 2] - x[3*j + 2];
            s += m[j]/sqrt(0.01 + (u*u + v*v + w*w));
        }
        total -= m[i]*s;
    }
    return total;
}

void n_body_grad_hand(const double *restrict x, const double *restrict m, long long n, double *restrict out)
{
    for (long long i = 0; i < n; i++) {
        double a = 0, b = 0, c = 0;
        for (long long j = 0; j < n; j++) {
            const double u = x[3*i] - x[3*j], v = x[3*i + 1] - x[3*j + 1], w = x[3*i + 2] - x[3*j + 2];
            const double r = 1/sqrt(0.01 + (u*u + v*v + w*w)), f = m[j]*r*r*r;
            a += f*u;
            b += f*v;
            c += f*w;
        }
        out[3*i] = 2*m[i]*a;
        out[3*i + 1] = 2*m[i]*b;
        out[3*i + 2] = 2*m[i]*c;
    }
}

double obstacles_hand(const double *restrict p, const double *restrict discs, long long n)
{
    double total = 0;
    for (long long i = 0; i < n; i++) {
        double s = 0;
        for (long long j = 0; j < n; j++) {
            const double u = p[2*i] - discs[3*j], v = p[2*i + 1] - discs[3*j + 1];
            const double depth = discs[3*j + 2] - sqrt(u*u + v*v);
            if (depth > 0) s += depth*depth;
        }
        total += s;
    }
    return total;
}
void obstacles_grad_hand(const double *restrict p, const double *restrict discs, long long n, double *restrict out)
{
    double *restrict by_discs = out + 2*n;
    memset(by_discs, 0, (size_t)(3*n)*sizeof(double));
    for (long long i = 0; i < n; i++) {
        double a = 0, b = 0;
        for (long long j = 0; j < n; j++) {
            const double u = p[2*i] - discs[3*j], v = p[2*i + 1] - discs[3*j + 1];
            const double r = sqrt(u*u + v*v), depth = discs[3*j + 2] - r;
            if (depth > 0) {
                const double f = r == 0 ? 0 : 2*depth/r;
                a -= f*u;
                b -= f*v;
                by_discs[3*j] += f*u;
                by_discs[3*j + 1] += f*v;
                by_discs[3*j + 2] += 2*depth;
            }
        }
        out[2*i] = a;
        out[2*i + 1] = b;
    }
}

double bumps_hand(const double *restrict p, const double *restrict bumps, long long n, double *restrict work)
{
    (void)work;
    double total = 0;
    for (long long i = 0; i < n; i++) {
        double s = 0;
        for (long long j = 0; j < n; j++) {
            const double u = p[2*i] - bumps[3*j], v = p[2*i + 1] - bumps[3*j + 1];
            s += bumps[3*j + 2]/(1 + (u*u + v*v));
        }
        total += s*s;
    }
    return total;
}
void bumps_grad_hand(const double *restrict p, const double *restrict bumps, long long n, double *restrict out,
    double *restrict work)
{
    double *restrict by_bumps = out + 2*n;
    memset(by_bumps, 0, (size_t)(3*n)*sizeof(double));
    for (long long i = 0; i < n; i++) {
        double s = 0, a = 0, b = 0;
        for (long long j = 0; j < n; j++) {
            const double u = p[2*i] - bumps[3*j], v = p[2*i + 1] - bumps[3*j + 1];
            work[j] = 1/(1 + (u*u + v*v));
            s += bumps[3*j + 2]*work[j];
        }
        for (long long j = 0; j < n; j++) {
            const double u = p[2*i] - bumps[3*j], v = p[2*i + 1] - bumps[3*j + 1];
            const double f = 4*s*bumps[3*j + 2]*work[j]*work[j];
            a -= f*u;
            b -= f*v;
            by_bumps[3*j] += f*u;
            by_bumps[3*j + 1] += f*v;
            by_bumps[3*j + 2] += 2*s*work[j];
        }
        out[2*i] = a;
        out[2*i + 1] = b;
    }
}

double lennard_jones_hand(const double *restrict x, long long n)
{
    double total = 0;
    for (long long i = 0; i < n; i++)
        for (long long j = i + 1; j < n; j++) {
            const double u = x[3*i] - x[3*j], v = x[3*i + 1] - x[3*j + 1], w = x[3*i + 2] - x[3*j + 2];
            const double r = u*u + v*v + w*w, s = 1/(r*r*r);
            total += 4*(s*s - s);
        }
    return total;
}

/* what one of a pair gets the other loses */
void lennard_jones_grad_hand(const double *restrict x, long long n, double *restrict out)
{
    memset(out, 0, 3*n*sizeof(double));
    for (long long i = 0; i < n; i++) {
        double a = 0, b = 0, c = 0;
        for (long long j = i + 1; j < n; j++) {
            const double u = x[3*i] - x[3*j], v = x[3*i + 1] - x[3*j + 1], w = x[3*i + 2] - x[3*j + 2];
            const double q = 1/(u*u + v*v + w*w), s = q*q*q, f = 24*(s - 2*s*s)*q;
            a += f*u;
            b += f*v;
            c += f*w;
            out[3*j] -= f*u;
            out[3*j + 1] -= f*v;
            out[3*j + 2] -= f*w;
        }
        out[3*i] += a;
        out[3*i + 1] += b;
        out[3*i + 2] += c;
    }
}

/* each pair once */
double charges_hand(const double *restrict x, const double *restrict q, long long n)
{
    double total = 0;
    for (long long i = 0; i < n; i++)
        for (long long j = i + 1; j < n; j++) {
            const double u = x[2*i] - x[2*j], v = x[2*i + 1] - x[2*j + 1];
            total += q[i]*q[j]/sqrt(u*u + v*v);
        }
    return total;
}

void charges_grad_hand(const double *restrict x, const double *restrict q, long long n, double *restrict out)
{
    double *restrict x_bar = out, *restrict q_bar = out + 2*n;
    memset(out, 0, 3*n*sizeof(double));
    for (long long i = 0; i < n; i++) {
        double a = 0, b = 0, c = 0;
        for (long long j = i + 1; j < n; j++) {
            const double u = x[2*i] - x[2*j], v = x[2*i + 1] - x[2*j + 1], s = 1/sqrt(u*u + v*v);
            const double f = q[i]*q[j]*s*s*s;
            a -= f*u;
            b -= f*v;
            c += q[j]*s;
            x_bar[2*j] += f*u;
            x_bar[2*j + 1] += f*v;
            q_bar[j] += q[i]*s;
        }
        x_bar[2*i] += a;
        x_bar[2*i + 1] += b;
        q_bar[i] += c;
    }
}

static void pulls(const double *restrict x, const double *restrict m, long long n, double *restrict f)
{
    for (long long i = 0; i < n; i++) {
        double a = 0, b = 0;
        for (int part = 0; part < 2; part++)
            for (long long j = part ? i + 1 : 0; j < (part ? n : i); j++) {
                const double u = x[2*j] - x[2*i], v = x[2*j + 1] - x[2*i + 1], r2 = u*u + v*v, g = m[j]/(r2*sqrt(r2));
                a += g*u;
                b += g*v;
            }
        f[2*i] = a;
        f[2*i + 1] = b;
    }
}

double forces_hand(const double *x, const double *m, long long n, double *work)
{
    double total = 0;
    pulls(x, m, n, work);
    for (long long k = 0; k < 2*n; k++) total += work[k]*work[k];
    return total;
}

/* what a pair gives the pull on i, and what it gives that on j */
void forces_grad_hand(const double *restrict x, const double *restrict m, long long n, double *restrict out,
    double *restrict work)
{
    double *restrict x_bar = out, *restrict m_bar = out + 2*n, *restrict f = work;
    pulls(x, m, n, f);
    for (long long i = 0; i < n; i++) {
        double a = 0, b = 0, c = 0;
        for (int part = 0; part < 2; part++)
            for (long long j = part ? i + 1 : 0; j < (part ? n : i); j++) {
                const double u = x[2*j] - x[2*i], v = x[2*j + 1] - x[2*i + 1], s = 1/sqrt(u*u + v*v), s2 = s*s;
                const double g = 2*s*s2, h = m[j]*f[2*i] - m[i]*f[2*j], k = m[j]*f[2*i + 1] - m[i]*f[2*j + 1];
                const double d = 3*(u*h + v*k)*s2;
                a += g*(d*u - h);
                b += g*(d*v - k);
                c -= g*(u*f[2*j] + v*f[2*j + 1]);
            }
        x_bar[2*i] = a;
        x_bar[2*i + 1] = b;
        m_bar[i] = c;
    }
}

static void heat_step(const double *restrict u, long long n, long long m, double *restrict v)
{
    memcpy(v, u, m*sizeof(double));
    for (long long i = 1; i < n - 1; i++) {
        v[i*m] = u[i*m];
        for (long long j = 1; j < m - 1; j++) {
            const long long k = i*m + j;
            v[k] = u[k] + 0.1*(u[k - m] + u[k + m] + u[k - 1] + u[k + 1] - 4*u[k]);
        }
        v[i*m + m - 1] = u[i*m + m - 1];
    }
    memcpy(v + (n - 1)*m, u + (n - 1)*m, m*sizeof(double));
}

double heat_hand(const double *u, long long n, long long m, double *work)
{
    double *v = work, *w = work + n*m, total = 0;
    heat_step(u, n, m, v);
    for (int t = 1; t < 10; t++) {
        heat_step(v, n, m, w);
        double *aside = v;
        v = w;
        w = aside;
    }
    for (long long k = 0; k < n*m; k++) total += v[k]*v[k];
    return total;
}

/* the step's transpose: what it takes from the border comes back to it */
static void heat_back(const double *restrict g, long long n, long long m, double *restrict h)
{
    for (long long i = 0; i < n; i++)
        for (long long j = 0; j < m; j++) {
            const long long k = i*m + j;
            if (i > 1 && j > 1 && i < n - 2 && j < m - 2) {
                h[k] = g[k] + 0.1*(g[k - m] + g[k + m] + g[k - 1] + g[k + 1] - 4*g[k]);
                continue;
            }
            const int inside = i > 0 && j > 0 && i < n - 1 && j < m - 1;
            double s = inside ? g[k] - 0.4*g[k] : g[k];
            if (i > 1 && j > 0 && j < m - 1) s += 0.1*g[k - m];
            if (i < n - 2 && j > 0 && j < m - 1) s += 0.1*g[k + m];
            if (j > 1 && i > 0 && i < n - 1) s += 0.1*g[k - 1];
            if (j < m - 2 && i > 0 && i < n - 1) s += 0.1*g[k + 1];
            h[k] = s;
        }
}

void heat_grad_hand(const double *u, long long n, long long m, double *restrict out, double *work)
{
    double *v = work, *w = work + n*m;
    heat_step(u, n, m, v);
    for (int t = 1; t < 10; t++) {
        heat_step(v, n, m, w);
        double *aside = v;
        v = w;
        w = aside;
    }
    for (long long k = 0; k < n*m; k++) v[k] *= 2;
    for (int t = 0; t < 9; t++) {
        heat_back(v, n, m, w);
        double *aside = v;
        v = w;
        w = aside;
    }
    heat_back(v, n, m, out);
}

/* the next state, in place of the one before; also its transpose, for adjoints that are nothing on the border */
static void wave_step(const double *restrict u, double c, long long n, long long m, double *restrict v)
{
    memset(v, 0, m*sizeof(double));
    for (long long i = 1; i < n - 1; i++) {
        v[i*m] = v[i*m + m - 1] = 0;
        for (long long j = 1; j < m - 1; j++) {
            const long long k = i*m + j;
            v[k] = 2*u[k] - v[k] + c*(u[k - m] + u[k + m] + u[k - 1] + u[k + 1] - 4*u[k]);
        }
    }
    memset(v + (n - 1)*m, 0, m*sizeof(double));
}

static double *waves(const double *u, double c, long long n, long long m, double *v, double *w)
{
    memcpy(v, u, n*m*sizeof(double));
    memcpy(w, u, n*m*sizeof(double));
    for (int t = 0; t < 10; t++) {
        wave_step(v, c, n, m, w);
        double *aside = v;
        v = w;
        w = aside;
    }
    return v;
}

double wave_hand(const double *u, double c, long long n, long long m, double *work)
{
    const double *v = waves(u, c, n, m, work, work + n*m);
    double total = 0;
    for (long long k = 0; k < n*m; k++) total += v[k]*v[k];
    return total;
}

void wave_grad_hand(const double *u, double c, long long n, long long m, double *restrict out, double *work)
{
    double *v = waves(u, c, n, m, work, work + n*m), *w = v == work ? work + n*m : work;
    for (long long k = 0; k < n*m; k++) v[k] *= 2;
    memset(w, 0, n*m*sizeof(double));
    for (int t = 0; t < 9; t++) {
        wave_step(v, c, n, m, w);
        double *aside = v;
        v = w;
        w = aside;
    }
    memset(out, 0, n*m*sizeof(double));
    for (long long j = 1; j < m - 1; j++) {
        out[j] = c*v[m + j];
        out[(n - 1)*m + j] = c*v[(n - 2)*m + j];
    }
    for (long long i = 1; i < n - 1; i++) {
        out[i*m] = c*v[i*m + 1];
        out[i*m + m - 1] = c*v[i*m + m - 2];
        for (long long j = 1; j < m - 1; j++) {
            const long long k = i*m + j;
            out[k] = v[k] - w[k] + c*(v[k - m] + v[k + m] + v[k - 1] + v[k + 1] - 4*v[k]);
        }
    }
}

enum { STEPS = 64 };

/* the prices of a spot of 1: up^(2 i - k) is at[STEPS - k + 2 i] */
static void powers(double up, double *at)
{
    at[STEPS] = 1;
    for (int k = 1; k <= STEPS; k++) {
        at[STEPS + k] = at[STEPS + k - 1]*up;
        at[STEPS - k] = 1/at[STEPS + k];
    }
}

double binomial_hand(double spot, double sigma, const double *strikes, long long n)
{
    const double dt = 1.0/STEPS, up = exp(sigma*sqrt(dt)), p = (exp(0.05*dt) - 1/up)/(up - 1/up);
    const double discount = exp(-0.05*dt);
    double at[2*STEPS + 1], v[STEPS + 1], total = 0;
    powers(up, at);
    for (long long q = 0; q < n; q++) {
        for (int i = 0; i <= STEPS; i++) v[i] = fmax(0, strikes[q] - spot*at[2*i]);
        for (int k = STEPS - 1; k >= 0; k--)
            for (int i = 0; i <= k; i++) {
                const double now = strikes[q] - spot*at[STEPS - k + 2*i];
                const double later = discount*(p*v[i + 1] + (1 - p)*v[i]);
                v[i] = now >= later ? now : later;
            }
        total += v[0];
    }
    return total;
}

/* two inputs: the tangents go along */
void binomial_grad_hand(double spot, double sigma, const double *strikes, long long n, double *out)
{
    const double dt = 1.0/STEPS, root = sqrt(dt), up = exp(sigma*root), growth = exp(0.05*dt);
    const double spread = up - 1/up, p = (growth - 1/up)/spread;
    const double dp = root*(1/up*spread - (growth - 1/up)*(up + 1/up))/(spread*spread);
    const double discount = exp(-0.05*dt);
    double at[2*STEPS + 1], v[STEPS + 1], a[STEPS + 1], b[STEPS + 1];
    powers(up, at);
    out[0] = out[1] = 0;
    for (long long q = 0; q < n; q++) {
        for (int i = 0; i <= STEPS; i++) {
            const double now = strikes[q] - spot*at[2*i];
            v[i] = 0 >= now ? 0 : now;
            a[i] = 0 >= now ? 0 : -at[2*i];
            b[i] = 0 >= now ? 0 : -spot*at[2*i]*(2*i - STEPS)*root;
        }
        for (int k = STEPS - 1; k >= 0; k--)
            for (int i = 0; i <= k; i++) {
                const double s = at[STEPS - k + 2*i], now = strikes[q] - spot*s;
                const double later = discount*(p*v[i + 1] + (1 - p)*v[i]);
                const double da = discount*(p*a[i + 1] + (1 - p)*a[i]);
                const double db = discount*(p*b[i + 1] + (1 - p)*b[i] + dp*(v[i + 1] - v[i]));
                a[i] = now >= later ? -s : da;
                b[i] = now >= later ? -spot*s*(2*i - k)*root : db;
                v[i] = now >= later ? now : later;
            }
        out[0] += a[0];
        out[1] += b[0];
    }
}

double black_scholes_hand(const double *S, const double *sigma, const double *K, const double *T, long long n)
{
    double total = 0;
    for (long long i = 0; i < n; i++) {
        const double spread = sigma[i]*sqrt(T[i]);
        const double d1 = (log(S[i]/K[i]) + (0.05 + 0.5*sigma[i]*sigma[i])*T[i])/spread, d2 = d1 - spread;
        const double n1 = 0.5*(1 + erf(d1*M_SQRT1_2)), n2 = 0.5*(1 + erf(d2*M_SQRT1_2));
        total += S[i]*n1 - K[i]*exp(-0.05*T[i])*n2;
    }
    return total;
}

/* delta and vega */
void black_scholes_grad_hand(const double *restrict S, const double *restrict sigma, const double *restrict K,
    const double *restrict T, long long n, double *restrict out)
{
    for (long long i = 0; i < n; i++) {
        const double root = sqrt(T[i]), spread = sigma[i]*root;
        const double d1 = (log(S[i]/K[i]) + (0.05 + 0.5*sigma[i]*sigma[i])*T[i])/spread;
        out[i] = 0.5*(1 + erf(d1*M_SQRT1_2));
        out[n + i] = S[i]*root*0.3989422804014327*exp(-0.5*d1*d1);
    }
}

/* The exponentials of A once; those of alpha, and the sums, in each step. */
static double hmm_forward(const double *restrict A, const double *restrict E, long long n, long long k,
    double *restrict p, double *restrict w, double *restrict s, double *restrict alpha)
{
    for (long long i = 0; i < k*k; i++) p[i] = exp(A[i]);
    memcpy(alpha, E, k*sizeof(double));
    for (long long t = 1; t < n; t++, w += k, s += k) {
        double most = alpha[0];
        for (long long i = 1; i < k; i++) most = alpha[i] > most ? alpha[i] : most;
        memset(s, 0, k*sizeof(double));
        for (long long i = 0; i < k; i++) {
            const double x = w[i] = exp(alpha[i] - most);
            for (long long j = 0; j < k; j++) s[j] += x*p[i*k + j];
        }
        for (long long j = 0; j < k; j++) alpha[j] = E[t*k + j] + most + log(s[j]);
    }
    double most = alpha[0], sum = 0;
    for (long long j = 1; j < k; j++) most = alpha[j] > most ? alpha[j] : most;
    for (long long j = 0; j < k; j++) sum += w[j] = exp(alpha[j] - most);
    for (long long j = 0; j < k; j++) w[j] /= sum;
    return most + log(sum);
}

double hmm_hand(const double *A, const double *E, long long n, long long k, double *work)
{
    double *w = work + k*k;
    return hmm_forward(A, E, n, k, work, w, w + n*k, w + 2*n*k);
}

/* forward, then backward: what is likely at each step, and for each pair of steps */
void hmm_grad_hand(const double *restrict A, const double *restrict E, long long n, long long k, double *restrict out,
    double *restrict work)
{
    double *restrict p = work, *restrict w = work + k*k, *restrict s = w + n*k, *restrict dA = out, *dE = out + k*k;
    hmm_forward(A, E, n, k, p, w, s, s + n*k);
    memset(dA, 0, k*k*sizeof(double));
    memcpy(dE + (n - 1)*k, w + (n - 1)*k, k*sizeof(double));
    for (long long t = n - 1; t > 0; t--) {
        const double *restrict g = dE + t*k, *restrict x = w + (t - 1)*k;
        double *restrict q = s + (t - 1)*k, *restrict h = dE + (t - 1)*k;
        for (long long j = 0; j < k; j++) q[j] = g[j]/q[j];
        for (long long i = 0; i < k; i++) {
            double sum = 0;
            for (long long j = 0; j < k; j++) {
                sum += p[i*k + j]*q[j];
                dA[i*k + j] += x[i]*q[j];
            }
            h[i] = x[i]*sum;
        }
    }
    for (long long i = 0; i < k*k; i++) dA[i] *= p[i];
}

enum { LEAPS = 10 };

/* v += dt times what the others do to each mass; each pair once */
static void kick(const double *restrict x, const double *restrict m, long long n, double dt, double *restrict v)
{
    for (long long i = 0; i < n; i++) {
        const double x0 = x[3*i], x1 = x[3*i + 1], x2 = x[3*i + 2], mass = m[i];
        double a = 0, b = 0, c = 0;
        for (long long j = i + 1; j < n; j++) {
            const double p = x[3*j] - x0, q = x[3*j + 1] - x1, r = x[3*j + 2] - x2;
            const double r2 = 0.01 + (p*p + q*q + r*r), s = dt/(r2*sqrt(r2)), f = m[j]*s, g = mass*s;
            a += f*p;
            b += f*q;
            c += f*r;
            v[3*j] -= g*p;
            v[3*j + 1] -= g*q;
            v[3*j + 2] -= g*r;
        }
        v[3*i] += a;
        v[3*i + 1] += b;
        v[3*i + 2] += c;
    }
}

double leapfrog_hand(const double *x0, const double *v0, const double *m, long long n, double *work)
{
    const double dt = 0.05;
    double *x = work, *v = work + 3*n, total = 0;
    memcpy(x, x0, 3*n*sizeof(double));
    memcpy(v, v0, 3*n*sizeof(double));
    for (int t = 0; t < LEAPS; t++) {
        for (long long k = 0; k < 3*n; k++) x[k] += 0.5*dt*v[k];
        kick(x, m, n, dt, v);
        for (long long k = 0; k < 3*n; k++) x[k] += 0.5*dt*v[k];
    }
    for (long long k = 0; k < 3*n; k++) total += x[k]*x[k];
    return total;
}

/* X += dt times the transpose of what the places do to the pulls, by V: what one of a pair gets the other loses */
static void kick_back(const double *restrict x, const double *restrict m, long long n, double dt,
    const double *restrict V, double *restrict X)
{
    for (long long i = 0; i < n; i++) {
        const double x0 = x[3*i], x1 = x[3*i + 1], x2 = x[3*i + 2], mass = m[i];
        const double V0 = V[3*i], V1 = V[3*i + 1], V2 = V[3*i + 2];
        double a = 0, b = 0, c = 0;
        for (long long j = i + 1; j < n; j++) {
            const double p = x[3*j] - x0, q = x[3*j + 1] - x1, r = x[3*j + 2] - x2;
            const double P = m[j]*V0 - mass*V[3*j], Q = m[j]*V1 - mass*V[3*j + 1], R = m[j]*V2 - mass*V[3*j + 2];
            const double w = 1/(0.01 + (p*p + q*q + r*r)), s = dt*w*sqrt(w), f = 3*s*w*(p*P + q*Q + r*R);
            const double A = s*P - f*p, B = s*Q - f*q, C = s*R - f*r;
            a -= A;
            b -= B;
            c -= C;
            X[3*j] += A;
            X[3*j + 1] += B;
            X[3*j + 2] += C;
        }
        X[3*i] += a;
        X[3*i + 1] += b;
        X[3*i + 2] += c;
    }
}

void leapfrog_grad_hand(const double *x0, const double *v0, const double *m, long long n, double *restrict out,
    double *restrict work)
{
    const double dt = 0.05;
    double *v = work, *x = work + 3*n, *X = out, *V = out + 3*n; /* the places at each kick, and the last ones */
    memcpy(v, v0, 3*n*sizeof(double));
    for (long long k = 0; k < 3*n; k++) x[k] = x0[k] + 0.5*dt*v[k];
    for (int t = 0; t < LEAPS; t++, x += 3*n) {
        const double ahead = t < LEAPS - 1 ? dt : 0.5*dt;
        kick(x, m, n, dt, v);
        for (long long k = 0; k < 3*n; k++) x[3*n + k] = x[k] + ahead*v[k];
    }
    for (long long k = 0; k < 3*n; k++) {
        X[k] = 2*x[k];
        V[k] = 0.5*dt*X[k];
    }
    for (int t = LEAPS - 1; t >= 0; t--) {
        const double ahead = t ? dt : 0.5*dt;
        x -= 3*n;
        kick_back(x, m, n, dt, V, X);
        for (long long k = 0; k < 3*n; k++) V[k] += ahead*X[k];
    }
}

enum { REACTIONS = 10 };

/* a row of a step; up and down: the rows before and behind on the ring */
static void gray_scott_row(const double *restrict u, const double *restrict v, const double *up, const double *down,
    const double *vup, const double *vdown, long long m, double *restrict p, double *restrict q)
{
    for (long long j = 0; j < m; j++) {
        const long long l = j ? j - 1 : m - 1, r = j < m - 1 ? j + 1 : 0;
        const double uvv = u[j]*v[j]*v[j];
        p[j] = u[j] + (0.16*(up[j] + down[j] + u[l] + u[r] - 4*u[j]) - uvv) + 0.035*(1 - u[j]);
        q[j] = v[j] + 0.08*(vup[j] + vdown[j] + v[l] + v[r] - 4*v[j]) + (uvv - 0.095*v[j]);
        if (j) continue;
        for (j = 1; j < m - 1; j++) {
            const double w = u[j]*v[j]*v[j];
            p[j] = u[j] + (0.16*(up[j] + down[j] + u[j - 1] + u[j + 1] - 4*u[j]) - w) + 0.035*(1 - u[j]);
            q[j] = v[j] + 0.08*(vup[j] + vdown[j] + v[j - 1] + v[j + 1] - 4*v[j]) + (w - 0.095*v[j]);
        }
        j = m > 1 ? m - 2 : 0;
    }
}

static void gray_scott_step(const double *u, const double *v, long long n, long long m, double *p, double *q)
{
    for (long long i = 0; i < n; i++) {
        const long long k = i*m, a = (i ? i - 1 : n - 1)*m, b = (i < n - 1 ? i + 1 : 0)*m;
        gray_scott_row(u + k, v + k, u + a, u + b, v + a, v + b, m, p + k, q + k);
    }
}

double gray_scott_hand(const double *u, const double *v, long long n, long long m, double *work)
{
    double *now = work, *next = work + 2*n*m, total = 0;
    gray_scott_step(u, v, n, m, now, now + n*m);
    for (int t = 1; t < REACTIONS; t++) {
        gray_scott_step(now, now + n*m, n, m, next, next + n*m);
        double *aside = now;
        now = next;
        next = aside;
    }
    for (long long k = 0; k < n*m; k++) total += now[n*m + k]*now[n*m + k];
    return total;
}

/* the transpose of a row's step, at u and v: the ring is its own transpose */
static void gray_scott_row_back(const double *restrict u, const double *restrict v, const double *restrict U,
    const double *restrict V, const double *up, const double *down, const double *vup, const double *vdown, long long m,
    double *restrict p, double *restrict q)
{
    for (long long j = 0; j < m; j++) {
        const long long l = j ? j - 1 : m - 1, r = j < m - 1 ? j + 1 : 0;
        const double d = V[j] - U[j];
        p[j] = 0.965*U[j] + 0.16*(up[j] + down[j] + U[l] + U[r] - 4*U[j]) + d*v[j]*v[j];
        q[j] = 0.905*V[j] + 0.08*(vup[j] + vdown[j] + V[l] + V[r] - 4*V[j]) + 2*d*u[j]*v[j];
        if (j) continue;
        for (j = 1; j < m - 1; j++) {
            const double e = V[j] - U[j];
            p[j] = 0.965*U[j] + 0.16*(up[j] + down[j] + U[j - 1] + U[j + 1] - 4*U[j]) + e*v[j]*v[j];
            q[j] = 0.905*V[j] + 0.08*(vup[j] + vdown[j] + V[j - 1] + V[j + 1] - 4*V[j]) + 2*e*u[j]*v[j];
        }
        j = m > 1 ? m - 2 : 0;
    }
}

void gray_scott_grad_hand(const double *u, const double *v, long long n, long long m, double *out, double *work)
{
    const long long s = n*m;
    double *states = work, *g = work + 2*s*REACTIONS, *h = g + 2*s;
    gray_scott_step(u, v, n, m, states, states + s);
    for (int t = 1; t < REACTIONS; t++) {
        double *now = states + 2*s*(t - 1);
        gray_scott_step(now, now + s, n, m, now + 2*s, now + 3*s);
    }
    memset(g, 0, s*sizeof(double));
    for (long long k = 0; k < s; k++) g[s + k] = 2*states[2*s*(REACTIONS - 1) + s + k];
    for (int t = REACTIONS - 1; t >= 0; t--) {
        const double *x = t ? states + 2*s*(t - 1) : u, *y = t ? x + s : v;
        double *to = t ? h : out;
        for (long long i = 0; i < n; i++) {
            const long long k = i*m, a = (i ? i - 1 : n - 1)*m, b = (i < n - 1 ? i + 1 : 0)*m;
            const double *V = g + s;
            gray_scott_row_back(x + k, y + k, g + k, V + k, g + a, g + b, V + a, V + b, m, to + k, to + s + k);
        }
        h = g;
        g = to;
    }
}

/* elimination; x is what solves it */
static void thomas_solve(const double *restrict a, const double *restrict b, const double *restrict c,
    const double *restrict d, long long n, double *restrict w, double *restrict e, double *restrict x)
{
    w[0] = 1/b[0];
    e[0] = c[0]*w[0];
    x[0] = d[0]*w[0];
    for (long long i = 1; i < n; i++) {
        w[i] = 1/(b[i] - a[i]*e[i - 1]);
        e[i] = c[i]*w[i];
        x[i] = (d[i] - a[i]*x[i - 1])*w[i];
    }
    for (long long i = n - 2; i >= 0; i--) x[i] -= e[i]*x[i + 1];
}

double thomas_hand(const double *a, const double *b, const double *c, const double *d, long long n, double *work)
{
    double total = 0, *w = work, *e = work + n, *x = work + 2*n;
    thomas_solve(a, b, c, d, n, w, e, x);
    for (long long i = 0; i < n; i++) total += x[i]*x[i];
    return total;
}

/* the transposed system, by the same elimination, has the adjoint of d; those of the matrix are products with x */
void thomas_grad_hand(const double *restrict a, const double *restrict b, const double *restrict c,
    const double *restrict d, long long n, double *restrict out, double *restrict work)
{
    double *w = work, *e = work + n, *x = work + 2*n, *A = out, *B = out + n, *C = out + 2*n, *l = out + 3*n;
    thomas_solve(a, b, c, d, n, w, e, x);
    l[0] = 2*x[0];
    for (long long i = 1; i < n; i++) l[i] = 2*x[i] - e[i - 1]*l[i - 1];
    l[n - 1] *= w[n - 1];
    for (long long i = n - 2; i >= 0; i--) l[i] = (l[i] - a[i + 1]*l[i + 1])*w[i];
    A[0] = C[n - 1] = 0;
    for (long long i = 0; i < n; i++) B[i] = -l[i]*x[i];
    for (long long i = 1; i < n; i++) A[i] = -l[i]*x[i - 1];
    for (long long i = 0; i < n - 1; i++) C[i] = -l[i]*x[i + 1];
}

/* two rows of what a filter gives */
static void filter_rows(const double *restrict x, long long m, const double *restrict w, double *restrict y)
{
    const long long l = m - 2;
    for (int r = 0; r < 2; r++, x += m, y += l)
        for (long long j = 0; j < l; j++) {
            const double *p = x + j, *q = p + m, *s = q + m;
            y[j] = w[0]*p[0] + w[1]*p[1] + w[2]*p[2] + w[3]*q[0] + w[4]*q[1] + w[5]*q[2] + w[6]*s[0] + w[7]*s[1]
                + w[8]*s[2];
        }
}

double convolution_hand(const double *x, const double *w, long long n, long long m, long long k, double *work)
{
    const long long l = m - 2;
    double total = 0;
    for (long long f = 0; f < k; f++)
        for (long long i = 0; i + 1 < n - 2; i += 2) {
            filter_rows(x + i*m, m, w + 9*f, work);
            for (long long j = 0; j + 1 < l; j += 2) {
                const double a = work[j] >= work[j + 1] ? work[j] : work[j + 1];
                const double b = work[l + j] >= work[l + j + 1] ? work[l + j] : work[l + j + 1], c = a >= b ? a : b;
                total += c*c;
            }
        }
    return total;
}

/* the largest of each four alone passes something on: to nine weights and nine places */
void convolution_grad_hand(const double *restrict x, const double *restrict w, long long n, long long m, long long k,
    double *restrict out, double *restrict work)
{
    const long long l = m - 2;
    memset(out, 0, n*m*sizeof(double));
    for (long long f = 0; f < k; f++) {
        const double *restrict u = w + 9*f;
        double s[9] = {0};
        for (long long i = 0; i + 1 < n - 2; i += 2) {
            filter_rows(x + i*m, m, u, work);
            for (long long j = 0; j + 1 < l; j += 2) {
                const long long a = work[j] >= work[j + 1] ? 0 : 1, b = work[l + j] >= work[l + j + 1] ? 0 : 1;
                const int low = work[j + a] >= work[l + j + b];
                const long long at = low ? i*m + j + a : (i + 1)*m + j + b;
                const double g = 2*(low ? work[j + a] : work[l + j + b]);
                for (int p = 0; p < 3; p++)
                    for (int q = 0; q < 3; q++) {
                        s[3*p + q] += g*x[at + p*m + q];
                        out[at + p*m + q] += g*u[3*p + q];
                    }
            }
        }
        memcpy(out + n*m + 9*f, s, sizeof s);
    }
}

/* U of the matrix U'U whose upper triangle is there, by rows */
static void upper_factor(double *restrict u, long long n)
{
    for (long long i = 0; i < n; i++) {
        for (long long k = 0; k < i; k++) {
            const double f = u[k*n + i];
            for (long long j = i; j < n; j++) u[i*n + j] -= f*u[k*n + j];
        }
        const double p = sqrt(u[i*n + i]), r = 1/p;
        u[i*n + i] = p;
        for (long long j = i + 1; j < n; j++) u[i*n + j] *= r;
    }
}

/* the lower triangle W = U'^-1; the inverse of U'U is W'W */
static void lower_inverse(const double *restrict u, long long n, double *restrict w)
{
    for (long long i = 0; i < n; i++) {
        const double r = 1/u[i*n + i];
        memset(w + i*n, 0, i*sizeof(double));
        for (long long k = 0; k < i; k++) {
            const double f = u[k*n + i]*r;
            for (long long j = 0; j <= k; j++) w[i*n + j] -= f*w[k*n + j];
        }
        w[i*n + i] = r;
    }
}

/* the factor U of the covariances U'U by rows, and the exponentials e below and on the diagonal */
static void gp_factor(double length, double scale, double noise, const double *restrict x, long long n,
    double *restrict e, double *restrict u)
{
    const double c = -0.5/(length*length);
    for (long long i = 0; i < n; i++) {
        for (long long j = 0; j < i; j++) {
            const double a = x[3*i] - x[3*j], b = x[3*i + 1] - x[3*j + 1], d = x[3*i + 2] - x[3*j + 2];
            e[i*n + j] = exp(c*(a*a + b*b + d*d));
            u[j*n + i] = scale*scale*e[i*n + j];
        }
        e[i*n + i] = 1;
        u[i*n + i] = scale*scale + noise*noise;
    }
    upper_factor(u, n);
}

/* a = U'^-1 y */
static void substitute_down(const double *restrict u, const double *restrict y, long long n, double *restrict a)
{
    memcpy(a, y, n*sizeof(double));
    for (long long i = 0; i < n; i++) {
        a[i] /= u[i*n + i];
        for (long long j = i + 1; j < n; j++) a[j] -= a[i]*u[i*n + j];
    }
}

double gaussian_process_hand(double length, double scale, double noise, const double *x, const double *y, long long n,
    double *work)
{
    double *e = work, *u = e + n*n, *a = u + n*n, total = 0;
    gp_factor(length, scale, noise, x, n, e, u);
    substitute_down(u, y, n, a);
    for (long long i = 0; i < n; i++) total -= 0.5*a[i]*a[i] + log(u[i*n + i]);
    return total;
}

/* with a = K^-1 y, the gradient by K is half of a a' - K^-1; K^-1 = W'W, where W U' = 1 */
void gaussian_process_grad_hand(double length, double scale, double noise, const double *restrict x,
    const double *restrict y, long long n, double *restrict out, double *restrict work)
{
    double *e = work, *u = e + n*n, *a = u + n*n, *w = a + n, *row = w + n*n;
    gp_factor(length, scale, noise, x, n, e, u);
    substitute_down(u, y, n, a);
    for (long long i = n - 1; i >= 0; i--) {
        double s = a[i];
        for (long long j = i + 1; j < n; j++) s -= u[i*n + j]*a[j];
        a[i] = s/u[i*n + i];
    }
    lower_inverse(u, n, w);
    double by_length = 0, by_scale = 0, by_noise = 0;
    for (long long i = 0; i < n; i++) {
        for (long long j = 0; j <= i; j++) row[j] = a[i]*a[j];
        for (long long k = i; k < n; k++) {
            const double f = w[k*n + i];
            for (long long j = 0; j <= i; j++) row[j] -= f*w[k*n + j];
        }
        for (long long j = 0; j < i; j++) {
            const double p = x[3*i] - x[3*j], q = x[3*i + 1] - x[3*j + 1], r = x[3*i + 2] - x[3*j + 2];
            const double g = row[j]*e[i*n + j];
            by_scale += g;
            by_length += g*(p*p + q*q + r*r);
        }
        by_scale += 0.5*row[i];
        by_noise += 0.5*row[i];
    }
    out[0] = by_length*scale*scale/(length*length*length);
    out[1] = 2*scale*by_scale;
    out[2] = 2*noise*by_noise;
}

double gaussian_process_inverse_hand(double length, double scale, double noise, const double *x, const double *y,
    long long n, double *work)
{
    return gaussian_process_hand(length, scale, noise, x, y, n, work);
}

void gaussian_process_inverse_grad_hand(double length, double scale, double noise, const double *x, const double *y,
    long long n, double *out, double *work)
{
    gaussian_process_grad_hand(length, scale, noise, x, y, n, out, work);
}

/* the best scores after each step, and where each came from */
static void viterbi_forward(const double *restrict A, const double *restrict E, long long n, long long k,
    double *restrict best, double *restrict after, long long *restrict from)
{
    memcpy(best, E, k*sizeof(double));
    for (long long t = 1; t < n; t++) {
        long long *f = from + t*k;
        for (long long j = 0; j < k; j++) {
            after[j] = best[0] + A[j];
            f[j] = 0;
        }
        for (long long i = 1; i < k; i++)
            for (long long j = 0; j < k; j++) {
                const double x = best[i] + A[i*k + j];
                f[j] = x > after[j] ? i : f[j];
                after[j] = x > after[j] ? x : after[j];
            }
        for (long long j = 0; j < k; j++) best[j] = E[t*k + j] + after[j];
    }
}

double viterbi_hand(const double *A, const double *E, long long n, long long k, double *work)
{
    double *best = work, *after = work + k;
    memcpy(best, E, k*sizeof(double));
    for (long long t = 1; t < n; t++) {
        for (long long j = 0; j < k; j++) after[j] = best[0] + A[j];
        for (long long i = 1; i < k; i++)
            for (long long j = 0; j < k; j++) {
                const double x = best[i] + A[i*k + j];
                after[j] = x > after[j] ? x : after[j];
            }
        for (long long j = 0; j < k; j++) best[j] = E[t*k + j] + after[j];
    }
    double most = best[0];
    for (long long j = 1; j < k; j++) most = best[j] > most ? best[j] : most;
    return most;
}

/* along the best path */
void viterbi_grad_hand(const double *restrict A, const double *restrict E, long long n, long long k,
    double *restrict out, double *restrict work)
{
    double *best = work, *after = work + k, *dA = out, *dE = out + k*k;
    long long *from = (long long *)(work + 2*k), at = 0;
    viterbi_forward(A, E, n, k, best, after, from);
    for (long long j = 1; j < k; j++) at = best[j] > best[at] ? j : at;
    memset(out, 0, (k*k + n*k)*sizeof(double));
    for (long long t = n - 1; t > 0; t--) {
        const long long before = from[t*k + at];
        dE[t*k + at] = 1;
        dA[before*k + at] += 1;
        at = before;
    }
    dE[at] = 1;
}

double viterbi_table_hand(const double *A, const double *E, long long n, long long k, double *work)
{
    return viterbi_hand(A, E, n, k, work);
}

void viterbi_table_grad_hand(const double *restrict A, const double *restrict E, long long n, long long k,
    double *restrict out, double *restrict work)
{
    viterbi_grad_hand(A, E, n, k, out, work);
}

/* weights of the paths to each state, scaled; exponentials of the steps, of the scores; the scales */
static double crf_forward(const double *restrict A, const double *restrict S, const double *restrict tags, long long n,
    long long k, double *restrict x, double *restrict e, double *restrict w, double *restrict scale)
{
    double total = 0, most = S[0];
    for (long long j = 1; j < k; j++) most = fmax(most, S[j]);
    for (long long i = 0; i < k*k; i++) x[i] = exp(A[i]);
    for (long long j = 0; j < k; j++) e[j] = exp(S[j] - most);
    for (long long i = k; i < n*k; i++) e[i] = exp(S[i]);
    total = most - S[(long long)tags[0]];
    for (long long t = 0; t < n; t++) {
        double *now = w + t*k, *before = now - k, s = 0;
        if (t == 0) memcpy(now, e, k*sizeof(double));
        else {
            memset(now, 0, k*sizeof(double));
            for (long long i = 0; i < k; i++)
                for (long long j = 0; j < k; j++) now[j] += before[i]*x[i*k + j];
            for (long long j = 0; j < k; j++) now[j] *= e[t*k + j];
            const long long a = (long long)tags[t - 1], b = (long long)tags[t];
            total -= A[a*k + b] + S[t*k + b];
        }
        for (long long j = 0; j < k; j++) s += now[j];
        for (long long j = 0; j < k; j++) now[j] /= s;
        scale[t] = s;
        total += log(s);
    }
    return total;
}

double crf_hand(const double *A, const double *S, const double *tags, long long n, long long k, double *work)
{
    return crf_forward(A, S, tags, n, k, work, work + k*k, work + k*k + n*k, work + k*k + 2*n*k);
}

/* forward, then backward: what is likely at each step, and for each pair of steps, less what is */
void crf_grad_hand(const double *restrict A, const double *restrict S, const double *restrict tags, long long n,
    long long k, double *restrict out, double *restrict work)
{
    double *x = work, *e = x + k*k, *w = e + n*k, *scale = w + n*k, *b = scale + n, *u = b + k;
    double *dA = out, *dS = out + k*k;
    crf_forward(A, S, tags, n, k, x, e, w, scale);
    memset(dA, 0, k*k*sizeof(double));
    for (long long j = 0; j < k; j++) b[j] = 1;
    for (long long t = n - 1; t > 0; t--) {
        const double *before = w + (t - 1)*k;
        const double over = 1/scale[t];
        for (long long j = 0; j < k; j++) {
            dS[t*k + j] = w[t*k + j]*b[j];
            u[j] = e[t*k + j]*b[j]*over;
        }
        for (long long i = 0; i < k; i++) {
            double s = 0;
            for (long long j = 0; j < k; j++) {
                dA[i*k + j] += before[i]*u[j];
                s += x[i*k + j]*u[j];
            }
            b[i] = s;
        }
    }
    for (long long j = 0; j < k; j++) dS[j] = w[j]*b[j];
    for (long long i = 0; i < k*k; i++) dA[i] *= x[i];
    for (long long t = 0; t < n; t++) {
        const long long at = (long long)tags[t];
        dS[t*k + at] -= 1;
        if (t > 0) dA[(long long)tags[t - 1]*k + at] -= 1;
    }
}

double causal_hand(const double *Q, const double *K, const double *V, long long n, long long d, double *work)
{
    return attended(Q, K, V, n, d, 1, work);
}

void causal_grad_hand(const double *restrict Q, const double *restrict K, const double *restrict V, long long n,
    long long d, double *restrict out, double *restrict work)
{
    attended_grad(Q, K, V, n, d, 1, out, work);
}

double masked_hand(const double *Q, const double *K, const double *V, long long n, long long d, double *work)
{
    return causal_hand(Q, K, V, n, d, work);
}

void masked_grad_hand(const double *restrict Q, const double *restrict K, const double *restrict V, long long n,
    long long d, double *restrict out, double *restrict work)
{
    causal_grad_hand(Q, K, V, n, d, out, work);
}

static double least_of(double a, double b, double c)
{
    const double d = b < c ? b : c;
    return a < d ? a : d;
}

double soft_dtw_hand(const double *x, const double *y, long long n, long long m, double *work)
{
    work[0] = 0;
    for (long long j = 0; j < m; j++) work[j + 1] = 1e10;
    for (long long i = 0; i < n; i++) {
        double corner = work[0], left = work[0] = 1e10;
        for (long long j = 0; j < m; j++) {
            const double up = work[j + 1], d = x[i] - y[j], least = least_of(corner, up, left);
            left = d*d + least - log(exp(least - corner) + exp(least - up) + exp(least - left));
            corner = up;
            work[j + 1] = left;
        }
    }
    return work[m];
}

/* of each field how much comes from the corner, from above, from the left; then back */
void soft_dtw_grad_hand(const double *restrict x, const double *restrict y, long long n, long long m,
    double *restrict out, double *restrict work)
{
    double *row = work, *part = work + m + 1, *dx = out, *dy = out + n;
    row[0] = 0;
    for (long long j = 0; j < m; j++) row[j + 1] = 1e10;
    for (long long i = 0; i < n; i++) {
        double corner = row[0], left = row[0] = 1e10, *p = part + 3*m*i;
        for (long long j = 0; j < m; j++, p += 3) {
            const double up = row[j + 1], d = x[i] - y[j], least = least_of(corner, up, left);
            const double a = exp(least - corner), b = exp(least - up), c = exp(least - left), s = a + b + c;
            left = d*d + least - log(s);
            corner = up;
            row[j + 1] = left;
            p[0] = a/s;
            p[1] = b/s;
            p[2] = c/s;
        }
    }
    memset(out, 0, (n + m)*sizeof(double));
    memset(row, 0, m*sizeof(double)); /* what comes to each field from below */
    row[m - 1] = 1;
    for (long long i = n - 1; i >= 0; i--) {
        double right = 0, *p = part + 3*m*(i + 1);
        double s = 0, corner = 0;
        for (long long j = m - 1; j >= 0; j--) {
            p -= 3;
            const double e = row[j] + right, d = 2*e*(x[i] - y[j]);
            s += d;
            dy[j] -= d;
            row[j] = p[1]*e + corner;
            corner = p[0]*e;
            right = p[2]*e;
        }
        dx[i] = s;
    }
}

double alignment_hand(const double *alike, double gap, long long n, long long m, double *work)
{
    for (long long j = 0; j <= m; j++) work[j] = -gap*j;
    for (long long i = 0; i < n; i++) {
        double corner = work[0], left = work[0] -= gap;
        for (long long j = 0; j < m; j++) {
            const double up = work[j + 1], a = corner + alike[i*m + j], b = up - gap, c = left - gap;
            const double both = a > b ? a : b;
            left = both > c ? both : c;
            corner = up;
            work[j + 1] = left;
        }
    }
    return work[m];
}

/* which of the three each field has, then back along the best path */
void alignment_grad_hand(const double *restrict alike, double gap, long long n, long long m, double *restrict out,
    double *restrict work)
{
    unsigned char *from = (unsigned char *)(work + m + 1);
    double gaps = 0;
    for (long long j = 0; j <= m; j++) work[j] = -gap*j;
    for (long long i = 0; i < n; i++) {
        double corner = work[0], left = work[0] -= gap;
        for (long long j = 0; j < m; j++) {
            const double up = work[j + 1], a = corner + alike[i*m + j], b = up - gap, c = left - gap;
            const double both = a >= b ? a : b;
            left = both >= c ? both : c;
            from[i*m + j] = both >= c ? a >= b ? 0 : 1 : 2;
            corner = up;
            work[j + 1] = left;
        }
    }
    memset(out, 0, n*m*sizeof(double));
    for (long long i = n, j = m; i > 0 || j > 0;) {
        const int way = i == 0 ? 2 : j == 0 ? 1 : from[(i - 1)*m + j - 1];
        if (way == 0) out[(i - 1)*m + j - 1] = 1;
        else gaps += 1;
        i -= way != 2;
        j -= way != 1;
    }
    out[n*m] = -gaps;
}

/* the factor U of 1 + A A' */
static void covariance(const double *restrict A, long long d, double *restrict u)
{
    for (long long i = 0; i < d; i++)
        for (long long j = i; j < d; j++) {
            double s = i == j;
            for (long long k = 0; k < d; k++) s += A[i*d + k]*A[j*d + k];
            u[i*d + j] = s;
        }
    upper_factor(u, d);
}

double normal_rows_hand(const double *mean, const double *A, const double *x, long long n, long long d, double *work)
{
    double *u = work, *e = u + d*d, *z = e + d, total = 0;
    covariance(A, d, u);
    for (long long i = 0; i < d; i++) total -= n*log(u[i*d + i]);
    for (long long k = 0; k < n; k++) {
        for (long long i = 0; i < d; i++) e[i] = x[k*d + i] - mean[i];
        substitute_down(u, e, d, z);
        double s = 0;
        for (long long i = 0; i < d; i++) s += z[i]*z[i];
        total -= 0.5*s;
    }
    return total;
}

/* with z = S^-1 e for each row, the gradient by S is half of the sum of z z' - S^-1 */
void normal_rows_grad_hand(const double *restrict mean, const double *restrict A, const double *restrict x, long long n,
    long long d, double *restrict out, double *restrict work)
{
    double *u = work, *w = u + d*d, *v = w + d*d, *by_S = v + d*d, *z = by_S + d*d, *by_mean = out, *by_A = out + d;
    covariance(A, d, u);
    lower_inverse(u, d, w);
    memset(v, 0, d*d*sizeof(double));
    for (long long k = 0; k < d; k++)
        for (long long i = 0; i <= k; i++)
            for (long long j = 0; j <= k; j++) v[i*d + j] += w[k*d + i]*w[k*d + j];
    for (long long i = 0; i < d*d; i++) by_S[i] = -0.5*n*v[i];
    memset(by_mean, 0, d*sizeof(double));
    for (long long k = 0; k < n; k++) {
        memset(z, 0, d*sizeof(double));
        for (long long i = 0; i < d; i++) {
            const double e = x[k*d + i] - mean[i];
            for (long long j = 0; j < d; j++) z[j] += e*v[i*d + j];
        }
        for (long long i = 0; i < d; i++) {
            by_mean[i] += z[i];
            for (long long j = 0; j < d; j++) by_S[i*d + j] += 0.5*z[i]*z[j];
        }
    }
    memset(by_A, 0, d*d*sizeof(double));
    for (long long i = 0; i < d; i++)
        for (long long k = 0; k < d; k++)
            for (long long j = 0; j < d; j++) by_A[i*d + j] += 2*by_S[i*d + k]*A[k*d + j];
}

double asian_hand(double spot, const double *restrict sigma, const double *restrict z, long long n, long long m,
    double *price)
{
    (void)price;
    double total = 0;
    for (long long i = 0; i < n; i++) {
        double s = spot, a = 0;
        for (long long j = 0; j < m; j++) {
            s *= 1.0002 + sigma[j]*z[m*i + j];
            a += s;
        }
        total += fmax(0, a/(double)m - 100);
    }
    return total/(double)n;
}

/* a path that pays nothing has no derivative; the prices of the others are kept for the way back */
void asian_grad_hand(double spot, const double *restrict sigma, const double *restrict z, long long n, long long m,
    double *restrict out, double *restrict price)
{
    const double mean = 1/((double)n*(double)m);
    memset(out, 0, (size_t)(m + 1)*sizeof *out);
    for (long long i = 0; i < n; i++) {
        double s = spot, a = 0, ds = 0;
        for (long long j = 0; j < m; j++) {
            price[j] = s;
            s *= 1.0002 + sigma[j]*z[m*i + j];
            a += s;
        }
        if (a/(double)m <= 100) continue;
        for (long long j = m - 1; j >= 0; j--) {
            ds += mean;
            out[1 + j] += ds*price[j]*z[m*i + j];
            ds *= 1.0002 + sigma[j]*z[m*i + j];
        }
        out[0] += ds;
    }
}

double heston_hand(double s0, double v0, double kappa, double theta, double xi, double rho, const double *restrict z1,
    const double *restrict z2, long long n, long long m, double *work)
{
    (void)work;
    const double dt = 1/(double)m, other = sqrt(1 - rho*rho), start = log(s0);
    double total = 0;
    for (long long i = 0; i < n; i++) {
        double x = start, v = v0;
        for (long long j = 0; j < m; j++) {
            const double e = z1[m*i + j], w = rho*e + other*z2[m*i + j], vp = fmax(v, 0), r = sqrt(vp*dt);
            x += r*e - 0.5*vp*dt;
            v += kappa*(theta - vp)*dt + xi*r*w;
        }
        total += fmax(0, exp(x) - 100);
    }
    return total/(double)n;
}

/* the variances of a path that pays are kept, with their roots, for the way back */
void heston_grad_hand(double s0, double v0, double kappa, double theta, double xi, double rho,
    const double *restrict z1, const double *restrict z2, long long n, long long m, double *restrict out,
    double *restrict work)
{
    const double dt = 1/(double)m, other = sqrt(1 - rho*rho), start = log(s0);
    double *variance = work, *root = work + m;
    double by_s = 0, by_v = 0, by_kappa = 0, by_theta = 0, by_xi = 0, by_rho = 0;
    for (long long i = 0; i < n; i++) {
        const double *restrict first = z1 + m*i, *restrict second = z2 + m*i;
        double x = start, v = v0;
        for (long long j = 0; j < m; j++) {
            const double e = first[j], w = rho*e + other*second[j], vp = fmax(v, 0), r = sqrt(vp*dt);
            variance[j] = v;
            root[j] = r;
            x += r*e - 0.5*vp*dt;
            v += kappa*(theta - vp)*dt + xi*r*w;
        }
        const double price = exp(x);
        if (price <= 100) continue;
        const double dx = price/(double)n;
        double dv = 0;
        for (long long j = m - 1; j >= 0; j--) {
            const double e = first[j], w = rho*e + other*second[j], vp = fmax(variance[j], 0), r = root[j];
            by_kappa += dv*(theta - vp)*dt;
            by_theta += dv*kappa*dt;
            by_xi += dv*r*w;
            by_rho += dv*xi*r*(e - rho/other*second[j]);
            if (variance[j] > 0) dv += (dx*e + dv*xi*w)*dt/(2*r) - 0.5*dx*dt - dv*kappa*dt;
        }
        by_s += dx/s0;
        by_v += dv;
    }
    out[0] = by_s, out[1] = by_v, out[2] = by_kappa, out[3] = by_theta, out[4] = by_xi, out[5] = by_rho;
}

/* the nearest centre of a point, and the square of what is between them */
static long long nearest(const double *restrict c, const double *restrict x, long long k, long long d, double *square)
{
    long long at = 0;
    *square = INFINITY;
    for (long long q = 0; q < k; q++) {
        double s = 0;
        for (long long j = 0; j < d; j++) s += (x[j] - c[q*d + j])*(x[j] - c[q*d + j]);
        if (s < *square) {
            *square = s;
            at = q;
        }
    }
    return at;
}

double clusters_hand(const double *restrict c, const double *restrict x, long long k, long long n, long long d)
{
    double total = 0, square;
    for (long long i = 0; i < n; i++) {
        nearest(c, x + i*d, k, d, &square);
        total += square;
    }
    return total;
}

void clusters_grad_hand(const double *restrict c, const double *restrict x, long long k, long long n, long long d,
    double *restrict out)
{
    double square;
    memset(out, 0, (size_t)(k*d)*sizeof *out);
    for (long long i = 0; i < n; i++) {
        const long long at = nearest(c, x + i*d, k, d, &square);
        for (long long j = 0; j < d; j++) out[at*d + j] += 2*(c[at*d + j] - x[i*d + j]);
    }
}

/* the mean and 1 over the deviation of each column */
static void moments(const double *restrict x, long long n, long long d, double *restrict mean, double *restrict scale)
{
    memset(mean, 0, (size_t)d*sizeof *mean);
    memset(scale, 0, (size_t)d*sizeof *scale);
    for (long long i = 0; i < n; i++)
        for (long long j = 0; j < d; j++) mean[j] += x[i*d + j];
    for (long long j = 0; j < d; j++) mean[j] /= (double)n;
    for (long long i = 0; i < n; i++)
        for (long long j = 0; j < d; j++) scale[j] += (x[i*d + j] - mean[j])*(x[i*d + j] - mean[j]);
    for (long long j = 0; j < d; j++) scale[j] = 1/sqrt(scale[j]/(double)n + 1e-5);
}

double batch_norm_hand(const double *restrict x, const double *restrict gamma, const double *restrict beta, long long n,
    long long d, double *restrict work)
{
    const double *mean = work, *scale = work + d;
    double total = 0;
    moments(x, n, d, work, work + d);
    for (long long i = 0; i < n; i++)
        for (long long j = 0; j < d; j++) {
            const double y = gamma[j]*((x[i*d + j] - mean[j])*scale[j]) + beta[j];
            total += y*y;
        }
    return total;
}

void batch_norm_grad_hand(const double *restrict x, const double *restrict gamma, const double *restrict beta,
    long long n, long long d, double *restrict out, double *restrict work)
{
    const double *mean = work, *scale = work + d;
    double *by_x = out, *by_gamma = out + n*d, *by_beta = by_gamma + d;
    moments(x, n, d, work, work + d);
    memset(by_gamma, 0, (size_t)(2*d)*sizeof *out);
    for (long long i = 0; i < n; i++)
        for (long long j = 0; j < d; j++) {
            const double h = (x[i*d + j] - mean[j])*scale[j], e = 2*(gamma[j]*h + beta[j]);
            by_gamma[j] += e*h;
            by_beta[j] += e;
        }
    for (long long i = 0; i < n; i++)
        for (long long j = 0; j < d; j++) {
            const double h = (x[i*d + j] - mean[j])*scale[j], e = 2*(gamma[j]*h + beta[j]);
            by_x[i*d + j] = gamma[j]*scale[j]*(e - (by_beta[j] + h*by_gamma[j])/(double)n);
        }
}

/* the sums of who is at risk, from the last row on: n steps, where the definition has n n/2 */
double cox_hand(const double *restrict b, const double *restrict x, const double *restrict event, long long n,
    long long d, double *work)
{
    (void)work;
    double sum = 0, total = 0;
    for (long long i = n - 1; i >= 0; i--) {
        double eta = 0;
        for (long long j = 0; j < d; j++) eta += x[i*d + j]*b[j];
        sum += exp(eta);
        total += event[i]*(eta - log(sum));
    }
    return total;
}

void cox_grad_hand(const double *restrict b, const double *restrict x, const double *restrict event, long long n,
    long long d, double *restrict out, double *restrict work)
{
    double *e = work, *part = work + n, sum = 0, risk = 0;
    for (long long i = n - 1; i >= 0; i--) {
        double eta = 0;
        for (long long j = 0; j < d; j++) eta += x[i*d + j]*b[j];
        sum += e[i] = exp(eta);
        part[i] = event[i]/sum;
    }
    memset(out, 0, (size_t)d*sizeof *out);
    for (long long i = 0; i < n; i++) {
        risk += part[i];
        const double by_eta = event[i] - e[i]*risk;
        for (long long j = 0; j < d; j++) out[j] += by_eta*x[i*d + j];
    }
}

/* a step; the border stays */
static void diffuse(const double *restrict u, const double *restrict k, long long n, long long m, double *restrict to)
{
    memcpy(to, u, m*sizeof(double));
    for (long long i = 1; i < n - 1; i++) {
        const double *a = u + (i - 1)*m, *b = u + i*m, *c = u + (i + 1)*m;
        to[i*m] = b[0];
        for (long long j = 1; j < m - 1; j++)
            to[i*m + j] = b[j] + 0.1*k[i*m + j]*(a[j] + c[j] + b[j - 1] + b[j + 1] - 4*b[j]);
        to[i*m + m - 1] = b[m - 1];
    }
    memcpy(to + (n - 1)*m, u + (n - 1)*m, m*sizeof(double));
}
double diffusion_hand(const double *u, const double *k, long long n, long long m, double *work)
{
    double *to = work, *other = work + n*m, total = 0;
    for (int t = 0; t < 10; t++) {
        diffuse(u, k, n, m, to);
        u = to;
        to = other;
        other = (double *)u;
    }
    for (long long i = 0; i < n*m; i++) total += u[i]*u[i];
    return total;
}
void diffusion_grad_hand(const double *restrict u, const double *restrict k, long long n, long long m, double *restrict out,
    double *restrict work)
{
    double *s = work, *kb = out + n*m, *ub = out, *vb = work + 11*n*m, *g = work + 12*n*m;
    memcpy(s, u, n*m*sizeof(double));
    for (int t = 0; t < 10; t++) diffuse(s + t*n*m, k, n, m, s + (t + 1)*n*m);
    for (long long i = 0; i < n*m; i++) ub[i] = 2*s[10*n*m + i];
    memset(kb, 0, n*m*sizeof(double));
    memset(g, 0, n*m*sizeof(double));
    for (int t = 9; t >= 0; t--) {
        const double *u0 = s + t*n*m;
        for (long long i = 1; i < n - 1; i++) {
            const double *a = u0 + (i - 1)*m, *b = u0 + i*m, *c = u0 + (i + 1)*m;
            for (long long j = 1; j < m - 1; j++) {
                const double x = 0.1*ub[i*m + j];
                kb[i*m + j] += x*(a[j] + c[j] + b[j - 1] + b[j + 1] - 4*b[j]);
                g[i*m + j] = x*k[i*m + j];
            }
        }
        for (long long j = 0; j < m; j++) {
            vb[j] = ub[j] + (n > 2 ? g[m + j] : 0);
            vb[(n - 1)*m + j] = ub[(n - 1)*m + j] + (n > 2 ? g[(n - 2)*m + j] : 0);
        }
        for (long long i = 1; i < n - 1; i++) {
            const double *a = g + (i - 1)*m, *b = g + i*m, *c = g + (i + 1)*m;
            vb[i*m] = ub[i*m] + b[1];
            for (long long j = 1; j < m - 1; j++)
                vb[i*m + j] = ub[i*m + j] + (a[j] + c[j] + b[j - 1] + b[j + 1] - 4*b[j]);
            vb[i*m + m - 1] = ub[i*m + m - 1] + b[m - 2];
        }
        double *swap = ub;
        ub = vb;
        vb = swap;
    }
    if (ub != out) memcpy(out, ub, n*m*sizeof(double));
}

/* a sweep; the border stays */
static void sweep(const double *restrict u, const double *restrict f, long long n, double *restrict to)
{
    memcpy(to, u, n*sizeof(double));
    for (long long i = 1; i < n - 1; i++) {
        const double *a = u + (i - 1)*n, *b = u + i*n, *c = u + (i + 1)*n;
        to[i*n] = b[0];
        for (long long j = 1; j < n - 1; j++)
            to[i*n + j] = 0.25*(a[j] + c[j] + b[j - 1] + b[j + 1] + f[i*n + j]);
        to[i*n + n - 1] = b[n - 1];
    }
    memcpy(to + (n - 1)*n, u + (n - 1)*n, n*sizeof(double));
}
double jacobi_hand(const double *u, const double *k, long long n, double *work)
{
    double *to = work, *other = work + n*n, total = 0;
    for (int t = 0; t < 10; t++) {
        sweep(u, k, n, to);
        u = to;
        to = other;
        other = (double *)u;
    }
    for (long long i = 0; i < n*n; i++) total += u[i]*u[i];
    return total;
}
void jacobi_grad_hand(const double *restrict u, const double *restrict f, long long n, double *restrict out, double *restrict work)
{
    double *ub = out, *vb = work, *g = work + n*n, *fb = out + n*n;
    /* the last state */
    memcpy(ub, u, n*n*sizeof(double));
    for (int t = 0; t < 10; t++) {
        sweep(ub, f, n, vb);
        double *swap = ub;
        ub = vb;
        vb = swap;
    }
    for (long long i = 0; i < n*n; i++) ub[i] *= 2;
    memset(fb, 0, n*n*sizeof(double));
    memset(g, 0, n*n*sizeof(double));
    for (int t = 9; t >= 0; t--) {
        for (long long i = 1; i < n - 1; i++)
            for (long long j = 1; j < n - 1; j++) {
                g[i*n + j] = 0.25*ub[i*n + j];
                fb[i*n + j] += g[i*n + j];
            }
        for (long long j = 0; j < n; j++) {
            vb[j] = ub[j] + g[n + j];
            vb[(n - 1)*n + j] = ub[(n - 1)*n + j] + g[(n - 2)*n + j];
        }
        for (long long i = 1; i < n - 1; i++) {
            const double *a = g + (i - 1)*n, *b = g + i*n, *c = g + (i + 1)*n;
            vb[i*n] = ub[i*n] + b[1];
            for (long long j = 1; j < n - 1; j++) vb[i*n + j] = a[j] + c[j] + b[j - 1] + b[j + 1];
            vb[i*n + n - 1] = ub[i*n + n - 1] + b[n - 2];
        }
        double *swap = ub;
        ub = vb;
        vb = swap;
    }
    if (ub != out) memcpy(out, ub, n*n*sizeof(double));
}

double thomas_in_place_hand(const double *a, const double *b, const double *c, const double *d, long long n, double *work)
{
    double *p = work, *q = work + n, x, total;
    p[0] = b[0];
    q[0] = d[0];
    for (long long i = 1; i < n; i++) {
        const double w = a[i]/p[i - 1];
        p[i] = b[i] - w*c[i - 1];
        q[i] = d[i] - w*q[i - 1];
    }
    x = q[n - 1]/p[n - 1];
    total = x*x;
    for (long long i = n - 2; i >= 0; i--) {
        x = (q[i] - c[i]*x)/p[i];
        total += x*x;
    }
    return total;
}
void thomas_in_place_grad_hand(const double *restrict a, const double *restrict b, const double *restrict c, const double *restrict d, long long n, double *restrict out, double *restrict work)
{
    /* A' y = 2 x; d_bar = y, A_bar = -y x' on the bands */
    double *w = work, *x = work + n, *r = work + 2*n, *y = out + 3*n;
    double q = d[0];
    r[0] = 1/b[0];
    x[0] = d[0];
    for (long long i = 1; i < n; i++) {
        w[i] = a[i]*r[i - 1];
        r[i] = 1/(b[i] - w[i]*c[i - 1]);
        x[i] = q = d[i] - w[i]*q;
    }
    x[n - 1] *= r[n - 1];
    for (long long i = n - 2; i >= 0; i--) x[i] = (x[i] - c[i]*x[i + 1])*r[i];
    y[0] = 2*x[0]*r[0];
    for (long long i = 1; i < n; i++) y[i] = (2*x[i] - c[i - 1]*y[i - 1])*r[i];
    for (long long i = n - 2; i >= 0; i--) y[i] -= w[i + 1]*y[i + 1];
    for (long long i = 0; i < n; i++) {
        out[i] = i > 0 ? -y[i]*x[i - 1] : 0;
        out[n + i] = -y[i]*x[i];
        out[2*n + i] = i < n - 1 ? -y[i]*x[i + 1] : 0;
    }
}

double spectrum_hand(const double *restrict x, long long n, double *work)
{
    double s = 0;
    (void)work;
    for (long long k = 0; k < n; k++) {
        double re = 0, im = 0;
        for (long long t = 0; t < n; t++) {
            const double a = -2*M_PI*k*t/n;
            re += x[t]*cos(a);
            im += x[t]*sin(a);
        }
        s += log(1 + re*re + im*im);
    }
    return s;
}

void spectrum_grad_hand(const double *restrict x, long long n, double *restrict out, double *restrict work)
{
    double *restrict c = work, *restrict s = work + n;
    memset(out, 0, n*sizeof(double));
    for (long long k = 0; k < n; k++) {
        double re = 0, im = 0;
        for (long long t = 0; t < n; t++) {
            const double a = -2*M_PI*k*t/n;
            c[t] = cos(a);
            s[t] = sin(a);
            re += x[t]*c[t];
            im += x[t]*s[t];
        }
        const double g = 2/(1 + re*re + im*im);
        for (long long t = 0; t < n; t++) out[t] += g*(re*c[t] + im*s[t]);
    }
}

double bilateral_hand(const double *restrict I, double space, double range, const double *restrict target, long long n,
    long long m, double *work)
{
    const double a = 1/(2*space*space), b = 1/(2*range*range);
    double s = 0;
    (void)work;
    for (long long i = 0; i < n; i++)
        for (long long j = 0; j < m; j++) {
            const double c = I[i*m + j];
            double t = 0, w = 0;
            for (long long y = i < 2 ? 0 : i - 2; y <= (i + 2 < n ? i + 2 : n - 1); y++)
                for (long long x = j < 2 ? 0 : j - 2; x <= (j + 2 < m ? j + 2 : m - 1); x++) {
                    const double v = I[y*m + x], e = v - c, d = (y - i)*(y - i) + (x - j)*(x - j);
                    const double q = exp(-d*a - e*e*b);
                    t += q*v;
                    w += q;
                }
            const double f = t/w - target[i*m + j];
            s += f*f;
        }
    return s;
}

void bilateral_grad_hand(const double *restrict I, double space, double range, const double *restrict target,
    long long n, long long m, double *restrict out, double *restrict work)
{
    const double a = 1/(2*space*space), b = 1/(2*range*range);
    double sb = 0, rb = 0, *restrict q = work;
    memset(out, 0, n*m*sizeof(double));
    for (long long i = 0; i < n; i++)
        for (long long j = 0; j < m; j++) {
            const long long y0 = i < 2 ? 0 : i - 2, y1 = i + 2 < n ? i + 2 : n - 1;
            const long long x0 = j < 2 ? 0 : j - 2, x1 = j + 2 < m ? j + 2 : m - 1;
            const double c = I[i*m + j];
            double t = 0, w = 0, cb = 0;
            int at = 0;
            for (long long y = y0; y <= y1; y++)
                for (long long x = x0; x <= x1; x++) {
                    const double v = I[y*m + x], e = v - c, d = (y - i)*(y - i) + (x - j)*(x - j);
                    q[at] = exp(-d*a - e*e*b);
                    t += q[at]*v;
                    w += q[at++];
                }
            const double o = t/w, tb = 2*(o - target[i*m + j])/w;
            at = 0;
            for (long long y = y0; y <= y1; y++)
                for (long long x = x0; x <= x1; x++) {
                    const double v = I[y*m + x], e = v - c, d = (y - i)*(y - i) + (x - j)*(x - j);
                    const double g = tb*q[at], h = g*(v - o), eb = -2*b*e*h;
                    at++;
                    out[y*m + x] += g + eb;
                    cb += eb;
                    sb += h*d;
                    rb += h*e*e;
                }
            out[i*m + j] -= cb;
        }
    out[n*m] = sb/(space*space*space);
    out[n*m + 1] = rb/(range*range*range);
}

static void blur_weights(double sigma, double *k)
{
    double s = 0;
    for (int i = 0; i < 9; i++) s += k[i] = exp(-(i - 4.0)*(i - 4.0)/(2*sigma*sigma));
    for (int i = 0; i < 9; i++) k[i] /= s;
}

static long long kept_inside(long long i, long long n) { return i < 0 ? 0 : i >= n ? n - 1 : i; }
static void padded_row(const double *r, double *pad, long long m)
{
    for (int k = 0; k < 4; k++) pad[k] = r[0], pad[m + 4 + k] = r[m - 1];
    memcpy(pad + 4, r, m*sizeof(double));
}

static void blur_rows(const double *restrict image, const double *restrict kernel, double *restrict a,
    double *restrict pad, long long n, long long m)
{
    for (long long i = 0; i < n; i++) {
        padded_row(image + i*m, pad, m);
        for (long long j = 0; j < m; j++) {
            double s = 0;
            for (int k = 0; k < 9; k++) s += kernel[k]*pad[j + k];
            a[i*m + j] = s;
        }
    }
}

static void blur_column(const double *restrict a, const double *restrict kernel, double *restrict d, long long i,
    long long n, long long m)
{
    const double *r[9];
    for (int k = 0; k < 9; k++) r[k] = a + kept_inside(i + k - 4, n)*m;
    for (long long j = 0; j < m; j++) {
        double s = 0;
        for (int k = 0; k < 9; k++) s += kernel[k]*r[k][j];
        d[j] = s;
    }
}

double blur_hand(const double *image, double sigma, const double *target, long long n, long long m, double *work)
{
    double kernel[9], *a = work, *pad = work + n*m, *d = pad + m + 8, s = 0;
    blur_weights(sigma, kernel);
    blur_rows(image, kernel, a, pad, n, m);
    for (long long i = 0; i < n; i++) {
        blur_column(a, kernel, d, i, n, m);
        for (long long j = 0; j < m; j++) s += (d[j] - target[i*m + j])*(d[j] - target[i*m + j]);
    }
    return s;
}

void blur_grad_hand(const double *restrict image, double sigma, const double *restrict target, long long n, long long m,
    double *restrict out, double *restrict work)
{
    double kernel[9], kb[9] = {0}, *restrict a = work, *restrict pad = work + n*m, *restrict d = pad + m + 8;
    double *restrict ab = d + m, *restrict pb = ab + n*m;
    blur_weights(sigma, kernel);
    blur_rows(image, kernel, a, pad, n, m);
    memset(ab, 0, n*m*sizeof(double));
    for (long long i = 0; i < n; i++) {
        blur_column(a, kernel, d, i, n, m);
        for (long long j = 0; j < m; j++) d[j] = 2*(d[j] - target[i*m + j]);
        for (int k = 0; k < 9; k++) {
            const long long at = kept_inside(i + k - 4, n)*m;
            double s = 0;
            for (long long j = 0; j < m; j++) {
                s += d[j]*a[at + j];
                ab[at + j] += kernel[k]*d[j];
            }
            kb[k] += s;
        }
    }
    for (long long i = 0; i < n; i++) {
        double *restrict b = ab + i*m, *restrict o = out + i*m;
        padded_row(image + i*m, pad, m);
        memset(pb, 0, (m + 8)*sizeof(double));
        for (long long j = 0; j < m; j++)
            for (int k = 0; k < 9; k++) kb[k] += b[j]*pad[j + k];
        for (int k = 0; k < 9; k++)
            for (long long j = 0; j < m; j++) pb[j + k] += kernel[k]*b[j];
        memcpy(o, pb + 4, m*sizeof(double));
        for (int k = 0; k < 4; k++) o[0] += pb[k], o[m - 1] += pb[m + 4 + k];
    }
    double mean = 0, sb = 0;
    for (int k = 0; k < 9; k++) mean += kernel[k]*(k - 4)*(k - 4);
    for (int k = 0; k < 9; k++) sb += kb[k]*kernel[k]*((k - 4)*(k - 4) - mean);
    out[n*m] = sb/(sigma*sigma*sigma);
}

#define GRAVITY 9.81
#define HALF 0.025 /* of time step over cell */

static void fluxes(const double *restrict h, const double *restrict p, const double *restrict q, double *restrict f,
    double *restrict x, double *restrict k, long long c)
{
    for (long long i = 0; i < c; i++) {
        const double y = 1/h[i], e = 0.5*GRAVITY*h[i]*h[i];
        f[i] = p[i]*p[i]*y + e;
        x[i] = p[i]*q[i]*y;
        k[i] = q[i]*q[i]*y + e;
    }
}

/* a step of u, whose fluxes are f and k, at column j between l and r */
#define CELL(j, l, r) v[at + j] = 0.25*(u[up + j] + u[down + j] + u[at + l] + u[at + r]) \
        - HALF*(f[down + j] - f[up + j]) - HALF*(k[at + r] - k[at + l])
static void advance(const double *restrict u, const double *restrict f, const double *restrict k, double *restrict v,
    long long n, long long m)
{
    for (long long i = 0; i < n; i++) {
        const long long up = (i ? i - 1 : n - 1)*m, down = (i < n - 1 ? i + 1 : 0)*m, at = i*m;
        CELL(0, m - 1, 1);
        for (long long j = 1; j < m - 1; j++) CELL(j, j - 1, j + 1);
        CELL((m - 1), m - 2, 0);
    }
}

static void water_step(const double *s, double *to, double *f, long long n, long long m)
{
    const long long c = n*m;
    fluxes(s, s + c, s + 2*c, f, f + c, f + 2*c, c);
    advance(s, s + c, s + 2*c, to, n, m);
    advance(s + c, f, f + c, to + c, n, m);
    advance(s + 2*c, f + c, f + 2*c, to + 2*c, n, m);
}

double shallow_water_hand(const double *h, const double *p, const double *q, long long n, long long m, double *work)
{
    const long long c = n*m;
    double *f = work, *now = work + 3*c, *next = work + 6*c, energy = 0;
    memcpy(now, h, c*sizeof(double));
    memcpy(now + c, p, c*sizeof(double));
    memcpy(now + 2*c, q, c*sizeof(double));
    for (int t = 0; t < 10; t++) {
        water_step(now, next, f, n, m);
        double *aside = now;
        now = next;
        next = aside;
    }
    for (long long i = 0; i < c; i++) {
        const double x = now[c + i], y = now[2*c + i];
        energy += (x*x + y*y)/now[i] + GRAVITY*now[i]*now[i];
    }
    return 0.5*energy;
}

/* the transpose of a step at s: the ring is its own transpose, so that each cell takes what its neighbours give */
#define BACK(j, l, r) do { \
        const double y = 1/h[at + j], x = p[at + j]*y, z = q[at + j]*y, w = GRAVITY*h[at + j]; \
        const double a = HALF*(P[down + j] - P[up + j]), b = HALF*(Q[at + r] - Q[at + l]); \
        const double d = HALF*((P[at + r] - P[at + l]) + (Q[down + j] - Q[up + j])); \
        const double e = HALF*(H[down + j] - H[up + j]), g = HALF*(H[at + r] - H[at + l]); \
        hb[at + j] = 0.25*(H[up + j] + H[down + j] + H[at + l] + H[at + r]) + a*(w - x*x) + b*(w - z*z) - d*x*z; \
        pb[at + j] = 0.25*(P[up + j] + P[down + j] + P[at + l] + P[at + r]) + e + 2*a*x + d*z; \
        qb[at + j] = 0.25*(Q[up + j] + Q[down + j] + Q[at + l] + Q[at + r]) + g + 2*b*z + d*x; \
    } while (0)
static void water_back(const double *restrict s, const double *restrict H, double *restrict hb, long long n,
    long long m)
{
    const long long c = n*m;
    const double *restrict h = s, *restrict p = s + c, *restrict q = s + 2*c;
    const double *restrict P = H + c, *restrict Q = H + 2*c;
    double *restrict pb = hb + c, *restrict qb = hb + 2*c;
    for (long long i = 0; i < n; i++) {
        const long long up = (i ? i - 1 : n - 1)*m, down = (i < n - 1 ? i + 1 : 0)*m, at = i*m;
        BACK(0, (m - 1), 1);
        for (long long j = 1; j < m - 1; j++) BACK(j, (j - 1), (j + 1));
        BACK((m - 1), (m - 2), 0);
    }
}

void shallow_water_grad_hand(const double *h, const double *p, const double *q, long long n, long long m, double *out,
    double *work)
{
    const long long c = n*m;
    double *f = work, *states = work + 3*c, *a = work + 36*c, *b = out;
    memcpy(states, h, c*sizeof(double));
    memcpy(states + c, p, c*sizeof(double));
    memcpy(states + 2*c, q, c*sizeof(double));
    for (int t = 0; t < 10; t++) water_step(states + 3*c*t, states + 3*c*(t + 1), f, n, m);
    const double *restrict s = states + 30*c;
    for (long long i = 0; i < c; i++) {
        const double y = 1/s[i], x = s[c + i]*y, z = s[2*c + i]*y;
        b[i] = GRAVITY*s[i] - 0.5*(x*x + z*z);
        b[c + i] = x;
        b[2*c + i] = z;
    }
    for (int t = 9; t >= 0; t--) {
        water_back(states + 3*c*t, b, a, n, m);
        double *aside = a;
        a = b;
        b = aside;
    }
}

enum { LAGS = 20 };

/* the statistic; e: without the mean, LAGS zeros behind; sums: its prefix sums; the variance as well */
static double kpss_parts(const double *restrict x, long long n, double *restrict e, double *restrict sums,
    double *variance)
{
    double mean = 0, s = 0, total = 0, gamma[LAGS + 1] = {0};
    for (long long t = 0; t < n; t++) mean += x[t];
    mean /= n;
    for (long long t = 0; t < n; t++) e[t] = x[t] - mean;
    memset(e + n, 0, LAGS*sizeof(double));
    for (long long t = 0; t < n; t++) {
        s += e[t];
        sums[t] = s;
        total += s*s;
    }
    for (long long t = 0; t < n; t++)
        for (int l = 0; l <= LAGS; l++) gamma[l] += e[t]*e[t + l];
    double v = gamma[0];
    for (int l = 1; l <= LAGS; l++) v += 2*(1 - l/(LAGS + 1.0))*gamma[l];
    *variance = v/n;
    return total/((double)n*n**variance);
}

double kpss_hand(const double *x, long long n, double *work)
{
    double v;
    return kpss_parts(x, n, work, work + n + LAGS, &v);
}

void kpss_grad_hand(const double *restrict x, long long n, double *restrict out, double *restrict work)
{
    double v, *restrict e = work + LAGS, *restrict sums = work + n + 2*LAGS, mean = 0, sum = 0;
    memset(work, 0, LAGS*sizeof(double));
    const double all = kpss_parts(x, n, e, sums, &v), c = 2/((double)n*n*v), g = -2*all/v/n;
    for (long long t = 0; t < n; t++) out[t] = g*e[t];
    for (int l = 1; l <= LAGS; l++) {
        const double w = g*(1 - l/(LAGS + 1.0));
        for (long long t = 0; t < n; t++) out[t] += w*(e[t + l] + e[t - l]);
    }
    for (long long t = n - 1; t >= 0; t--) {
        sum += c*sums[t];
        out[t] += sum;
        mean += out[t];
    }
    mean /= n;
    for (long long t = 0; t < n; t++) out[t] -= mean;
}

double garch_hand(double mu, double omega, double alpha, double beta, const double *restrict r, long long n)
{
    double h = omega/(1 - alpha - beta), sum = 0;
    for (long long i = 0; i < n; i++) {
        const double e = r[i] - mu, square = e*e;
        sum += log(h) + square/h;
        h = omega + alpha*square + beta*h;
    }
    return -0.5*sum;
}

/* forward: four tangents of one state */
void garch_grad_hand(double mu, double omega, double alpha, double beta, const double *restrict r, long long n,
    double *restrict out)
{
    const double k = 1/(1 - alpha - beta);
    double h = omega*k, hm = 0, ho = k, ha = h*k, hb = h*k, gm = 0, go = 0, ga = 0, gb = 0;
    for (long long i = 0; i < n; i++) {
        const double e = r[i] - mu, square = e*e, q = 1/h, w = -0.5*q*(1 - square*q);
        gm += w*hm + e*q;
        go += w*ho;
        ga += w*ha;
        gb += w*hb;
        hm = beta*hm - 2*alpha*e;
        ho = 1 + beta*ho;
        ha = square + beta*ha;
        hb = h + beta*hb;
        h = omega + alpha*square + beta*h;
    }
    out[0] = gm, out[1] = go, out[2] = ga, out[3] = gb;
}

double libor_hand(const double *restrict rates, const double *restrict vol, const double *restrict z, long long n,
    long long paths, long long steps, double *restrict L)
{
    const double dt = 0.25, root = sqrt(dt);
    double pay = 0;
    for (long long p = 0; p < paths; p++) {
        memcpy(L, rates, n*sizeof(double));
        for (long long t = 0; t < steps; t++) {
            const double dw = root*z[p*steps + t];
            double v = 0;
            for (long long i = t + 1; i < n; i++) {
                const double s = vol[i - t - 1], c = dt*s;
                v += c*L[i]/(1 + dt*L[i]);
                L[i] *= exp(c*v + s*(dw - 0.5*c));
            }
        }
        double bond = 1, swap = 0;
        for (long long i = steps; i < n; i++) bond /= 1 + dt*L[i], swap += dt*bond;
        const double x = 1 - bond - 0.05*swap;
        if (x > 0) pay += x;
    }
    return pay/paths;
}

void libor_grad_hand(const double *restrict rates, const double *restrict vol, const double *restrict z, long long n,
    long long paths, long long steps, double *restrict out, double *restrict work)
{
    const double dt = 0.25, root = sqrt(dt);
    double *restrict dvol = out + n, *Ls = work, *vs = Ls + (steps + 1)*n, *rs = vs + steps*n;
    double *restrict g = rs + steps*n, *restrict bonds = g + n;
    memset(out, 0, 2*n*sizeof(double));
    memcpy(Ls, rates, n*sizeof(double));
    for (long long p = 0; p < paths; p++) {
        for (long long t = 0; t < steps; t++) {
            const double dw = root*z[p*steps + t], *restrict L = Ls + t*n;
            double v = 0, *restrict M = Ls + (t + 1)*n, *restrict vt = vs + t*n, *restrict rt = rs + t*n;
            for (long long i = t + 1; i < n; i++) {
                const double s = vol[i - t - 1], c = dt*s;
                v += c*L[i]/(1 + dt*L[i]);
                vt[i] = v;
                rt[i] = exp(c*v + s*(dw - 0.5*c));
                M[i] = L[i]*rt[i];
            }
        }
        const double *restrict last = Ls + steps*n;
        double bond = 1, swap = 0;
        for (long long i = steps; i < n; i++) bonds[i] = bond /= 1 + dt*last[i], swap += dt*bond;
        if (1 - bond - 0.05*swap <= 0) continue;
        const double q = 1.0/paths;
        double gb = -q;
        memset(g, 0, steps*sizeof(double));
        for (long long i = n - 1; i >= steps; i--) {
            gb -= 0.05*q*dt;
            const double k = 1/(1 + dt*last[i]);
            g[i] = -gb*bonds[i]*dt*k;
            gb *= k;
        }
        for (long long t = steps - 1; t >= 0; t--) {
            const double dw = root*z[p*steps + t];
            const double *restrict L = Ls + t*n, *restrict vt = vs + t*n, *restrict rt = rs + t*n;
            double gv = 0;
            for (long long i = n - 1; i > t; i--) {
                const double s = vol[i - t - 1], c = dt*s, a = g[i]*rt[i], e = a*L[i], k = 1/(1 + dt*L[i]);
                gv += c*e;
                dvol[i - t - 1] += e*(dt*vt[i] + dw - c) + gv*dt*L[i]*k;
                g[i] = a + gv*c*k*k;
            }
        }
        for (long long i = 0; i < n; i++) out[i] += g[i];
    }
}

/* what a ray sees; if they are kept, how much comes through to each step, and through it */
static double ray(const double *restrict g, double rx, double ry, long long b, long long c, double *restrict T,
    double *restrict E, int keep)
{
    const double dt = 0.3;
    const long long j = (long long)floor(ry);
    const double v = ry - j;
    double light = 0, through = 1;
    for (int s = 0; s < 32; s++) {
        const double z = dt*(s + 0.5), x = rx + 0.05*z;
        const long long i = (long long)floor(x), k = (long long)floor(z);
        const double u = x - i, w = z - k, *r = g + (i*b + j)*c + k, *q = r + b*c;
        const double lo = (1 - v)*((1 - w)*r[0] + w*r[1]) + v*((1 - w)*r[c] + w*r[c + 1]);
        const double hi = (1 - v)*((1 - w)*q[0] + w*q[1]) + v*((1 - w)*q[c] + w*q[c + 1]);
        const double e = exp(-((1 - u)*lo + u*hi)*dt);
        if (keep) T[s] = through, E[s] = e;
        light += through*(1 - e)*(0.1 + 0.1*z);
        through *= e;
    }
    return light;
}

double rays_hand(const double *density, const double *at, const double *seen, long long a, long long b, long long c,
    long long n, double *work)
{
    double sum = 0;
    (void)a;
    for (long long r = 0; r < n; r++) {
        const double e = ray(density, at[2*r], at[2*r + 1], b, c, work, work + 32, 0) - seen[r];
        sum += e*e;
    }
    return sum;
}

void rays_grad_hand(const double *restrict density, const double *restrict at, const double *restrict seen, long long a,
    long long b, long long c, long long n, double *restrict out, double *restrict work)
{
    const double dt = 0.3;
    double *restrict T = work, *restrict E = work + 32;
    memset(out, 0, a*b*c*sizeof(double));
    for (long long r = 0; r < n; r++) {
        const double rx = at[2*r], ry = at[2*r + 1], lb = 2*(ray(density, rx, ry, b, c, T, E, 1) - seen[r]);
        const long long j = (long long)floor(ry);
        const double v = ry - j;
        double tb = 0;
        for (int s = 31; s >= 0; s--) {
            const double z = dt*(s + 0.5), x = rx + 0.05*z, l = lb*(0.1 + 0.1*z);
            const long long i = (long long)floor(x), k = (long long)floor(z);
            const double u = x - i, w = z - k, sb = (l - tb)*T[s]*E[s]*dt;
            double *restrict o = out + (i*b + j)*c + k, *restrict q = o + b*c;
            const double lo = (1 - u)*sb, hi = u*sb;
            o[0] += lo*(1 - v)*(1 - w);
            o[1] += lo*(1 - v)*w;
            o[c] += lo*v*(1 - w);
            o[c + 1] += lo*v*w;
            q[0] += hi*(1 - v)*(1 - w);
            q[1] += hi*(1 - v)*w;
            q[c] += hi*v*(1 - w);
            q[c + 1] += hi*v*w;
            tb = l*(1 - E[s]) + tb*E[s];
        }
    }
}

double warp_hand(const double *restrict a, const double *restrict b, const double *restrict flow, long long h,
    long long w)
{
    const double down = h - 1.001, right = w - 1.001;
    double cost = 0;
    for (long long i = 0; i < h; i++)
        for (long long j = 0; j < w; j++) {
            const double *U = flow + 2*(i*w + j);
            double y = i + U[1], x = j + U[0];
            y = y < 0 ? 0 : y > down ? down : y;
            x = x < 0 ? 0 : x > right ? right : x;
            const long long k = (long long)y, l = (long long)x;
            const double v = y - k, u = x - l, *B = b + k*w + l;
            const double s = (1 - v)*((1 - u)*B[0] + u*B[1]) + v*((1 - u)*B[w] + u*B[w + 1]) - a[i*w + j];
            cost += sqrt(1e-6 + s*s);
            if (i < h - 1) {
                const double p = U[2*w] - U[0], q = U[2*w + 1] - U[1];
                cost += 0.5*(p*p + q*q);
            }
            if (j < w - 1) {
                const double p = U[2] - U[0], q = U[3] - U[1];
                cost += 0.5*(p*p + q*q);
            }
        }
    return cost;
}

void warp_grad_hand(const double *restrict a, const double *restrict b, const double *restrict flow, long long h,
    long long w, double *restrict out)
{
    const double down = h - 1.001, right = w - 1.001;
    memset(out, 0, 2*h*w*sizeof(double));
    for (long long i = 0; i < h; i++)
        for (long long j = 0; j < w; j++) {
            const double *U = flow + 2*(i*w + j);
            double *G = out + 2*(i*w + j), gx = 0, gy = 0;
            const double y0 = i + U[1], x0 = j + U[0];
            const double y = y0 < 0 ? 0 : y0 > down ? down : y0, x = x0 < 0 ? 0 : x0 > right ? right : x0;
            const long long k = (long long)y, l = (long long)x;
            const double v = y - k, u = x - l, *B = b + k*w + l;
            const double lo = (1 - u)*B[0] + u*B[1], hi = (1 - u)*B[w] + u*B[w + 1];
            const double s = (1 - v)*lo + v*hi - a[i*w + j], r = s/sqrt(1e-6 + s*s);
            if (y == y0) gy = r*(hi - lo);
            if (x == x0) gx = r*((1 - v)*(B[1] - B[0]) + v*(B[w + 1] - B[w]));
            if (i < h - 1) {
                const double p = U[2*w] - U[0], q = U[2*w + 1] - U[1];
                gx -= p, gy -= q, G[2*w] += p, G[2*w + 1] += q;
            }
            if (j < w - 1) {
                const double p = U[2] - U[0], q = U[3] - U[1];
                gx -= p, gy -= q, G[2] += p, G[3] += q;
            }
            G[0] += gx, G[1] += gy;
        }
}

/* Of the matrix with b on the diagonal and a beside it, symmetric: the reciprocals of the pivots, and a times these. */
static void heat_factors(double a, double b, long long n, double *restrict d, double *restrict c)
{
    double p = 1/b;
    for (long long i = 0; i < n; i++) {
        d[i] = p, c[i] = a*p;
        p = 1/(b - a*c[i]);
    }
}

static void heat_solve(const double *restrict d, const double *restrict c, long long n, double *restrict x)
{
    for (long long i = 1; i < n; i++) x[i] -= c[i - 1]*x[i - 1];
    x[n - 1] *= d[n - 1];
    for (long long i = n - 2; i >= 0; i--) x[i] = d[i]*x[i] - c[i]*x[i + 1];
}

/* y = b x + a (what is beside x) */
static void heat_product(double a, double b, const double *restrict x, long long n, double *restrict y)
{
    for (long long i = 1; i < n - 1; i++) y[i] = b*x[i] + a*(x[i - 1] + x[i + 1]);
    if (n > 1) y[0] = b*x[0] + a*x[1], y[n - 1] = b*x[n - 1] + a*x[n - 2];
    else if (n > 0) y[0] = b*x[0];
}

double crank_nicolson_hand(const double *restrict u, double r, long long n, double *restrict work)
{
    double *d = work, *c = d + n, *x = c + n, *y = x + n, loss = 0;
    heat_factors(-0.5*r, 1 + r, n, d, c);
    memcpy(x, u, n*sizeof(double));
    for (int k = 0; k < 10; k++) {
        heat_product(0.5*r, 1 - r, x, n, y);
        heat_solve(d, c, n, y);
        double *swap = x;
        x = y, y = swap;
    }
    for (long long i = 0; i < n; i++) loss += x[i]*x[i];
    return loss;
}

void crank_nicolson_grad_hand(const double *restrict u, double r, long long n, double *restrict out,
    double *restrict work)
{
    double *d = work, *c = d + n, *x = c + n, *v = x + 11*n, by_r = 0;
    heat_factors(-0.5*r, 1 + r, n, d, c);
    memcpy(x, u, n*sizeof(double));
    for (int k = 0; k < 10; k++) {
        heat_product(0.5*r, 1 - r, x + k*n, n, x + (k + 1)*n);
        heat_solve(d, c, n, x + (k + 1)*n);
    }
    for (long long i = 0; i < n; i++) v[i] = 2*x[10*n + i];
    for (int k = 9; k >= 0; k--) {
        const double *p = x + k*n, *q = p + n;
        heat_solve(d, c, n, v);
        for (long long i = 0; i < n; i++) by_r -= v[i]*(p[i] + q[i]);
        for (long long i = 0; i < n - 1; i++)
            by_r += 0.5*(v[i]*(p[i + 1] + q[i + 1]) + v[i + 1]*(p[i] + q[i]));
        heat_product(0.5*r, 1 - r, v, n, out);
        if (k > 0) memcpy(v, out, n*sizeof(double));
    }
    out[n] = by_r;
}

/* The factors of I + lam D'D, D the second differences, without exchanges: pivots' reciprocals, two rows beside. */
static void smooth_factors(double lam, long long n, double *restrict d, double *restrict c, double *restrict e)
{
    for (long long i = 0; i < n; i++) {
        const int ends = (i < n - 2) + (i > 1), middle = i > 0 && i < n - 1;
        double p = 1 + lam*(ends + 4*middle), q = i < n - 1 ? -2*lam*((i > 0) + (i < n - 2)) : 0;
        const double s = i < n - 2 ? lam : 0;
        if (i > 0) {
            const double m = c[i - 1]/d[i - 1];
            p -= m*c[i - 1], q -= m*e[i - 1];
        }
        if (i > 1) p -= e[i - 2]*e[i - 2]/d[i - 2];
        d[i] = p, c[i] = q, e[i] = s;
    }
    for (long long i = 0; i < n; i++) d[i] = 1/d[i], c[i] *= d[i], e[i] *= d[i];
}

static void smooth(const double *restrict d, const double *restrict c, const double *restrict e, long long n,
    double *restrict x)
{
    for (long long i = 0; i < n; i++) {
        if (i > 0) x[i] -= c[i - 1]*x[i - 1];
        if (i > 1) x[i] -= e[i - 2]*x[i - 2];
    }
    for (long long i = n - 1; i >= 0; i--) {
        double s = d[i]*x[i];
        if (i < n - 2) s -= e[i]*x[i + 2];
        if (i < n - 1) s -= c[i]*x[i + 1];
        x[i] = s;
    }
}

double whittaker_hand(const double *restrict y, double lam, long long n, double *restrict work)
{
    double *d = work, *c = d + n, *e = c + n, *x = e + n, loss = 0;
    smooth_factors(lam, n, d, c, e);
    memcpy(x, y, n*sizeof(double));
    smooth(d, c, e, n, x);
    for (long long i = 0; i < n; i++) loss += (y[i] - x[i])*(y[i] - x[i]);
    return loss;
}

void whittaker_grad_hand(const double *restrict y, double lam, long long n, double *restrict out,
    double *restrict work)
{
    double *d = work, *c = d + n, *e = c + n, *x = e + n, *v = x + n, by_lam = 0;
    smooth_factors(lam, n, d, c, e);
    memcpy(x, y, n*sizeof(double));
    smooth(d, c, e, n, x);
    for (long long i = 0; i < n; i++) v[i] = -2*(y[i] - x[i]);
    smooth(d, c, e, n, v);
    for (long long i = 0; i < n; i++) out[i] = 2*(y[i] - x[i]) + v[i];
    for (long long i = 0; i < n - 2; i++)
        by_lam -= (v[i] - 2*v[i + 1] + v[i + 2])*(x[i] - 2*x[i + 1] + x[i + 2]);
    out[n] = by_lam;
}

/* The pivots' reciprocals and the multipliers of the bar's matrix; what is right of the diagonal is -k. */
static void bar_factors(const double *restrict k, long long n, double *restrict d, double *restrict m)
{
    double p = 1, right = 0;
    for (long long i = 0; i < n; i++) {
        d[i] = 1/p;
        if (i < n - 1) {
            m[i] = -k[i]*d[i];
            p = k[i] + (i < n - 2 ? k[i + 1] : 0) - m[i]*right;
            right = -k[i + 1];
        }
    }
}

static void bar_solve(const double *restrict k, const double *restrict d, const double *restrict m, long long n,
    double *restrict x)
{
    for (long long i = 1; i < n; i++) x[i] -= m[i - 1]*x[i - 1];
    x[n - 1] *= d[n - 1];
    for (long long i = n - 2; i > 0; i--) x[i] = d[i]*x[i] + k[i]*d[i]*x[i + 1];
}

double bar_hand(const double *restrict f, const double *restrict k, long long n, double *restrict work)
{
    double *d = work, *m = d + n, *x = m + n, stretch = 0;
    bar_factors(k, n, d, m);
    memcpy(x, f, n*sizeof(double));
    bar_solve(k, d, m, n, x);
    for (long long i = 0; i < n; i++) stretch += x[i]*x[i];
    return stretch;
}

void bar_grad_hand(const double *restrict f, const double *restrict k, long long n, double *restrict out,
    double *restrict work)
{
    double *d = work, *m = d + n, *x = m + n, *v = out, *by_k = out + n;
    bar_factors(k, n, d, m);
    memcpy(x, f, n*sizeof(double));
    bar_solve(k, d, m, n, x);
    /* the transpose: rows of the upper factor first */
    for (long long i = 0; i < n; i++) v[i] = 2*x[i];
    for (long long i = 0; i < n; i++) {
        v[i] *= d[i];
        if (i > 0 && i < n - 1) v[i + 1] += k[i]*v[i];
    }
    for (long long i = n - 2; i >= 0; i--) v[i] -= m[i]*v[i + 1];
    for (long long e = 0; e < n - 1; e++)
        by_k[e] = v[e + 1]*(x[e] - x[e + 1]) - (e > 0 ? v[e]*(x[e] - x[e + 1]) : 0);
    by_k[n - 1] = 0;
}

/* The covariance of places and velocities in the plane: of places (a b; b c), of places with velocities the rows
   (d e; f g), of velocities (h i; i j). A step of its filter: the gains, place by velocity, and S's inverse. */
typedef struct {
    double x, y, u, v, a, b, c, d, e, f, g, h, i, j;
} Tracked;

static void tracking_ahead(Tracked *restrict s, double q, double dt)
{
    s->x += dt*s->u;
    s->y += dt*s->v;
    s->a += dt*(2*s->d + dt*s->h) + q;
    s->b += dt*(s->e + s->f + dt*s->i);
    s->c += dt*(2*s->g + dt*s->j) + q;
    s->d += dt*s->h;
    s->e += dt*s->i;
    s->f += dt*s->i;
    s->g += dt*s->j;
    s->h += q;
    s->j += q;
}

double tracking_hand(double q, double r, double dt, const double *restrict ys, long long n)
{
    Tracked s = {.a = 1, .c = 1, .h = 1, .j = 1};
    double total = 0;
    for (long long t = 0; t < n; t++) {
        tracking_ahead(&s, q, dt);
        const double det = (s.a + r)*(s.c + r) - s.b*s.b, w = 1/det;
        const double k = (s.c + r)*w, l = -s.b*w, m = (s.a + r)*w;
        const double p = ys[2*t] - s.x, o = ys[2*t + 1] - s.y, kp = k*p + l*o, ko = l*p + m*o;
        total -= 0.5*(log(det) + kp*p + ko*o);
        s.x += s.a*kp + s.b*ko;
        s.y += s.b*kp + s.c*ko;
        s.u += s.d*kp + s.f*ko;
        s.v += s.e*kp + s.g*ko;
        const double a = s.a, b = s.b, c = s.c, d = s.d, e = s.e, f = s.f, g = s.g;
        const double ax = a*k + b*l, ay = a*l + b*m, by = b*l + c*m, bx = b*k + c*l; /* gains of places */
        const double ux = d*k + f*l, uy = d*l + f*m, vx = e*k + g*l, vy = e*l + g*m; /* and velocities */
        s.a -= ax*a + ay*b;
        s.b -= ax*b + ay*c;
        s.c -= bx*b + by*c;
        s.d -= ax*d + ay*f;
        s.e -= ax*e + ay*g;
        s.f -= bx*d + by*f;
        s.g -= bx*e + by*g;
        s.h -= ux*d + uy*f;
        s.i -= ux*e + uy*g;
        s.j -= vx*e + vy*g;
    }
    return total;
}

/* three inputs: their tangents go along */
void tracking_grad_hand(double q, double r, double dt, const double *restrict ys, long long n, double *restrict out)
{
    Tracked s = {.a = 1, .c = 1, .h = 1, .j = 1}, d[3] = {0};
    double total[3] = {0};
    for (long long t = 0; t < n; t++) {
        for (int z = 0; z < 3; z++) {
            const double dq = z == 0, by_dt = z == 2;
            Tracked *restrict e = &d[z];
            e->x += dt*e->u + by_dt*s.u;
            e->y += dt*e->v + by_dt*s.v;
            e->a += dt*(2*e->d + dt*e->h) + dq + by_dt*2*(s.d + dt*s.h);
            e->b += dt*(e->e + e->f + dt*e->i) + by_dt*(s.e + s.f + 2*dt*s.i);
            e->c += dt*(2*e->g + dt*e->j) + dq + by_dt*2*(s.g + dt*s.j);
            e->d += dt*e->h + by_dt*s.h;
            e->e += dt*e->i + by_dt*s.i;
            e->f += dt*e->i + by_dt*s.i;
            e->g += dt*e->j + by_dt*s.j;
            e->h += dq;
            e->j += dq;
        }
        tracking_ahead(&s, q, dt);
        const double det = (s.a + r)*(s.c + r) - s.b*s.b, w = 1/det;
        const double k = (s.c + r)*w, l = -s.b*w, m = (s.a + r)*w;
        const double p = ys[2*t] - s.x, o = ys[2*t + 1] - s.y, kp = k*p + l*o, ko = l*p + m*o;
        const double ax = s.a*k + s.b*l, ay = s.a*l + s.b*m, by = s.b*l + s.c*m, bx = s.b*k + s.c*l;
        const double ux = s.d*k + s.f*l, uy = s.d*l + s.f*m, vx = s.e*k + s.g*l, vy = s.e*l + s.g*m;
        for (int z = 0; z < 3; z++) {
            Tracked *restrict e = &d[z];
            const double da = e->a + (z == 1), dc = e->c + (z == 1), db = e->b;
            /* inverse: -S^-1 dS S^-1 */
            const double ka = k*da + l*db, kb = k*db + l*dc, la = l*da + m*db, lb = l*db + m*dc;
            const double dk = -(ka*k + kb*l), dl = -(ka*l + kb*m), dm = -(la*l + lb*m);
            total[z] -= 0.5*(k*da + 2*l*db + m*dc + p*(dk*p + dl*o) + o*(dl*p + dm*o) - 2*(kp*e->x + ko*e->y));
            const double dkp = dk*p + dl*o - k*e->x - l*e->y, dko = dl*p + dm*o - l*e->x - m*e->y;
            e->x += e->a*kp + s.a*dkp + e->b*ko + s.b*dko;
            e->y += e->b*kp + s.b*dkp + e->c*ko + s.c*dko;
            e->u += e->d*kp + s.d*dkp + e->f*ko + s.f*dko;
            e->v += e->e*kp + s.e*dkp + e->g*ko + s.g*dko;
            const double dax = e->a*k + s.a*dk + e->b*l + s.b*dl, day = e->a*l + s.a*dl + e->b*m + s.b*dm;
            const double dbx = e->b*k + s.b*dk + e->c*l + s.c*dl, dby = e->b*l + s.b*dl + e->c*m + s.c*dm;
            const double dux = e->d*k + s.d*dk + e->f*l + s.f*dl, duy = e->d*l + s.d*dl + e->f*m + s.f*dm;
            const double dvx = e->e*k + s.e*dk + e->g*l + s.g*dl, dvy = e->e*l + s.e*dl + e->g*m + s.g*dm;
            const Tracked f = *e;
            e->a -= dax*s.a + ax*f.a + day*s.b + ay*f.b;
            e->b -= dax*s.b + ax*f.b + day*s.c + ay*f.c;
            e->c -= dbx*s.b + bx*f.b + dby*s.c + by*f.c;
            e->d -= dax*s.d + ax*f.d + day*s.f + ay*f.f;
            e->e -= dax*s.e + ax*f.e + day*s.g + ay*f.g;
            e->f -= dbx*s.d + bx*f.d + dby*s.f + by*f.f;
            e->g -= dbx*s.e + bx*f.e + dby*s.g + by*f.g;
            e->h -= dux*s.d + ux*f.d + duy*s.f + uy*f.f;
            e->i -= dux*s.e + ux*f.e + duy*s.g + uy*f.g;
            e->j -= dvx*s.e + vx*f.e + dvy*s.g + vy*f.g;
        }
        const Tracked g = s;
        s.x += g.a*kp + g.b*ko;
        s.y += g.b*kp + g.c*ko;
        s.u += g.d*kp + g.f*ko;
        s.v += g.e*kp + g.g*ko;
        s.a -= ax*g.a + ay*g.b;
        s.b -= ax*g.b + ay*g.c;
        s.c -= bx*g.b + by*g.c;
        s.d -= ax*g.d + ay*g.f;
        s.e -= ax*g.e + ay*g.g;
        s.f -= bx*g.d + by*g.f;
        s.g -= bx*g.e + by*g.g;
        s.h -= ux*g.d + uy*g.f;
        s.i -= ux*g.e + uy*g.g;
        s.j -= vx*g.e + vy*g.g;
    }
    for (int z = 0; z < 3; z++) out[z] = total[z];
}

/* Both paths at once; the logarithms are compared, and the last price alone is computed. */
double barrier_hand(double spot, double sigma, const double *restrict z, long long n, long long m)
{
    const double dt = 1.0/m, drift = (0.03 - 0.5*sigma*sigma)*dt, vol = sigma*sqrt(dt), low = log(85.0/spot);
    double total = 0;
    for (long long p = 0; p < n; p++) {
        double x = 0, y = 0, below = INFINITY, under = INFINITY;
        for (long long t = 0; t < m; t++) {
            const double e = vol*z[p*m + t];
            x += drift + e;
            y += drift - e;
            below = x < below ? x : below;
            under = y < under ? y : under;
        }
        if (below > low) total += fmax(0.0, spot*exp(x) - 100.0);
        if (under > low) total += fmax(0.0, spot*exp(y) - 100.0);
    }
    return 0.5*exp(-0.03)*total/n;
}

void barrier_grad_hand(double spot, double sigma, const double *restrict z, long long n, long long m,
    double *restrict out)
{
    const double dt = 1.0/m, root = sqrt(dt), drift = (0.03 - 0.5*sigma*sigma)*dt, low = log(85.0/spot);
    double a = 0, b = 0;
    for (long long p = 0; p < n; p++) {
        double x = 0, y = 0, below = INFINITY, under = INFINITY, sum = 0;
        for (long long t = 0; t < m; t++) {
            const double e = sigma*root*z[p*m + t];
            sum += z[p*m + t];
            x += drift + e;
            y += drift - e;
            below = x < below ? x : below;
            under = y < under ? y : under;
        }
        if (below > low) {
            const double s = exp(x);
            if (spot*s > 100.0) a += s, b += spot*s*(root*sum - sigma);
        }
        if (under > low) {
            const double s = exp(y);
            if (spot*s > 100.0) a += s, b -= spot*s*(root*sum + sigma);
        }
    }
    out[0] = 0.5*exp(-0.03)*a/n;
    out[1] = 0.5*exp(-0.03)*b/n;
}

enum { TURNS = 20 };

/* The weights of all pairs, and the same the other way round: both products are sums of rows. */
static void weights(const double *restrict x, const double *restrict y, long long n, double *restrict K,
    double *restrict T)
{
    for (long long i = 0; i < n; i++)
        for (long long j = 0; j < n; j++) {
            const double a = x[2*i] - y[2*j], b = x[2*i + 1] - y[2*j + 1];
            T[j*n + i] = K[i*n + j] = exp(-2*(a*a + b*b));
        }
}

/* o = 1/(n K v), by K's transpose */
static void scaled(const double *restrict T, const double *restrict v, double *restrict o, long long n)
{
    memset(o, 0, n*sizeof(double));
    for (long long j = 0; j < n; j++)
        for (long long i = 0; i < n; i++) o[i] += v[j]*T[j*n + i];
    for (long long i = 0; i < n; i++) o[i] = 1/(n*o[i]);
}

/* The scalings of all turns, v first: no logarithms. */
static void turns(const double *K, const double *T, long long n, double *S)
{
    for (long long i = 0; i < n; i++) S[i] = 1;
    for (int t = 0; t < TURNS; t++) {
        scaled(T, S + 2*t*n, S + (2*t + 1)*n, n);
        scaled(K, S + (2*t + 1)*n, S + (2*t + 2)*n, n);
    }
}

double sinkhorn_hand(const double *restrict x, const double *restrict y, long long n, double *restrict work)
{
    double *K = work, *T = K + n*n, *S = T + n*n, total = 0;
    weights(x, y, n, K, T);
    turns(K, T, n, S);
    const double *u = S + (2*TURNS - 1)*n, *v = u + n;
    for (long long i = 0; i < n; i++)
        for (long long j = 0; j < n; j++) {
            const double a = x[2*i] - y[2*j], b = x[2*i + 1] - y[2*j + 1];
            total += u[i]*K[i*n + j]*v[j]*(a*a + b*b);
        }
    return total;
}

void sinkhorn_grad_hand(const double *restrict x, const double *restrict y, long long n, double *restrict out,
    double *restrict work)
{
    double *restrict K = work, *restrict T = K + n*n, *restrict D = T + n*n, *S = D + n*n;
    double *restrict U = S + (2*TURNS + 1)*n, *restrict V = U + n, *restrict q = V + n, *restrict Y = out + 2*n;
    weights(x, y, n, K, T);
    turns(K, T, n, S);
    const double *u = S + (2*TURNS - 1)*n, *v = u + n;
    memset(V, 0, n*sizeof(double));
    for (long long i = 0; i < n; i++) {
        double s = 0;
        for (long long j = 0; j < n; j++) {
            const double a = x[2*i] - y[2*j], b = x[2*i + 1] - y[2*j + 1], c = a*a + b*b, w = K[i*n + j]*c;
            s += w*v[j];
            V[j] += w*u[i];
            D[i*n + j] = u[i]*v[j]*c;
        }
        U[i] = s;
    }
    for (int t = TURNS - 1; t >= 0; t--) {
        const double *restrict before = S + 2*t*n, *restrict ut = before + n, *restrict vt = ut + n;
        for (long long j = 0; j < n; j++) q[j] = -V[j]*n*vt[j]*vt[j];
        for (long long j = 0; j < n; j++)
            for (long long i = 0; i < n; i++) U[i] += q[j]*T[j*n + i];
        for (long long i = 0; i < n; i++)
            for (long long j = 0; j < n; j++) D[i*n + j] += ut[i]*q[j];
        for (long long i = 0; i < n; i++) q[i] = -U[i]*n*ut[i]*ut[i];
        memset(V, 0, n*sizeof(double));
        memset(U, 0, n*sizeof(double));
        for (long long i = 0; i < n; i++)
            for (long long j = 0; j < n; j++) {
                V[j] += q[i]*K[i*n + j];
                D[i*n + j] += q[i]*before[j];
            }
    }
    memset(Y, 0, 2*n*sizeof(double));
    for (long long i = 0; i < n; i++) {
        double s = 0, r = 0;
        for (long long j = 0; j < n; j++) {
            const double a = x[2*i] - y[2*j], b = x[2*i + 1] - y[2*j + 1];
            const double g = 2*K[i*n + j]*(u[i]*v[j] - 2*D[i*n + j]);
            s += g*a;
            r += g*b;
            Y[2*j] -= g*a;
            Y[2*j + 1] -= g*b;
        }
        out[2*i] = s;
        out[2*i + 1] = r;
    }
}

/* Survival to each quarter, and what is paid and still to be paid until then: one table for all swaps. */
enum { QUARTERS = 40 };
static const int SPANS[6] = {4, 8, 12, 20, 28, 40};

static void swap_tables(const double *h, double r, double *restrict S, double *restrict D, double *restrict P,
    double *restrict A)
{
    double H = 0;
    S[0] = 1, P[0] = A[0] = 0;
    for (int t = 1, k = 0; t <= QUARTERS; t++) {
        if (t > SPANS[k]) k++;
        H += 0.25*h[k];
        S[t] = exp(-H);
        D[t] = exp(-0.25*r*t);
        P[t] = P[t - 1] + D[t]*(S[t - 1] - S[t]);
        A[t] = A[t - 1] + 0.125*D[t]*(S[t - 1] + S[t]);
    }
}

double swaps_hand(const double *restrict h, double r, double rec, const double *restrict spread,
    const double *restrict quarters, long long n, double *restrict work)
{
    double *S = work, *D = work + 41, *P = work + 82, *A = work + 123, total = 0;
    swap_tables(h, r, S, D, P, A);
    for (long long i = 0; i < n; i++) {
        const long long t = (long long)quarters[i];
        const double e = (1 - rec)*P[t] - spread[i]*A[t];
        total += e*e;
    }
    return total;
}

void swaps_grad_hand(const double *restrict h, double r, double rec, const double *restrict spread,
    const double *restrict quarters, long long n, double *restrict out, double *restrict work)
{
    double *S = work, *D = work + 41, *P = work + 82, *A = work + 123, *p = work + 164, *a = work + 206;
    double by_rec = 0, by_r = 0, s = 0, hazard = 0;
    swap_tables(h, r, S, D, P, A);
    memset(p, 0, 84*sizeof(double));
    for (long long i = 0; i < n; i++) {
        const long long t = (long long)quarters[i];
        const double e = 2*((1 - rec)*P[t] - spread[i]*A[t]);
        by_rec -= e*P[t];
        p[t] += (1 - rec)*e;
        a[t] -= spread[i]*e;
    }
    memset(out, 0, 6*sizeof(double));
    for (int t = QUARTERS, k = 5; t >= 1; t--) {
        p[t] += p[t + 1];
        a[t] += a[t + 1];
        s += D[t]*(0.125*a[t] - p[t]);
        by_r -= 0.25*t*D[t]*(p[t]*(S[t - 1] - S[t]) + 0.125*a[t]*(S[t - 1] + S[t]));
        hazard -= s*S[t];
        s = D[t]*(p[t] + 0.125*a[t]);
        while (k && t <= SPANS[k - 1]) k--;
        out[k] += 0.25*hazard;
    }
    out[6] = by_r;
    out[7] = by_rec;
}

double phases_hand(const double *restrict x, const double *restrict q, const double *restrict k,
    const double *restrict w, long long n, long long m, double *restrict work)
{
    double total = 0;
    (void)work;
    for (long long j = 0; j < m; j++) {
        double re = 0, im = 0;
        for (long long i = 0; i < n; i++) {
            const double p = k[3*j]*x[3*i] + k[3*j + 1]*x[3*i + 1] + k[3*j + 2]*x[3*i + 2];
            re += q[i]*cos(p);
            im += q[i]*sin(p);
        }
        total += w[j]*(re*re + im*im);
    }
    return total;
}

void phases_grad_hand(const double *restrict x, const double *restrict q, const double *restrict k,
    const double *restrict w, long long n, long long m, double *restrict out, double *restrict work)
{
    double *restrict C = work, *restrict S = work + n, *restrict Q = out + 3*n;
    memset(out, 0, 4*n*sizeof(double));
    for (long long j = 0; j < m; j++) {
        double re = 0, im = 0;
        for (long long i = 0; i < n; i++) {
            const double p = k[3*j]*x[3*i] + k[3*j + 1]*x[3*i + 1] + k[3*j + 2]*x[3*i + 2];
            C[i] = cos(p);
            S[i] = sin(p);
            re += q[i]*C[i];
            im += q[i]*S[i];
        }
        re *= 2*w[j];
        im *= 2*w[j];
        for (long long i = 0; i < n; i++) {
            const double g = q[i]*(im*C[i] - re*S[i]);
            Q[i] += re*C[i] + im*S[i];
            out[3*i] += g*k[3*j];
            out[3*i + 1] += g*k[3*j + 1];
            out[3*i + 2] += g*k[3*j + 2];
        }
    }
}

/* The factors are those of all lines; the lines are solved side by side, and come out as columns. */
static void line_factors(double r, long long n, double *restrict c, double *restrict d)
{
    for (long long i = 0; i < n; i++) {
        d[i] = 1/(1 + 2*r + (i ? r*c[i - 1] : 0));
        c[i] = -r*d[i];
    }
}

static void lines_solve(const double *restrict c, const double *restrict d, double r, long long n, double *restrict x)
{
    for (long long i = 0; i < n; i++) x[i] *= d[0];
    for (long long j = 1; j < n; j++)
        for (long long i = 0; i < n; i++) x[j*n + i] = (x[j*n + i] + r*x[(j - 1)*n + i])*d[j];
    for (long long j = n - 2; j >= 0; j--)
        for (long long i = 0; i < n; i++) x[j*n + i] -= c[j]*x[(j + 1)*n + i];
}

static double beside(const double *u, long long i, long long n) { return (i ? u[-n] : 0) + (i < n - 1 ? u[n] : 0); }

static void lines_step(const double *restrict u, const double *restrict c, const double *restrict d, double r,
    long long n, double *restrict x, double *restrict w)
{
    for (long long i = 0; i < n; i++)
        for (long long j = 0; j < n; j++) w[i*n + j] = (1 - 2*r)*u[i*n + j] + r*beside(u + i*n + j, i, n);
    for (long long i = 0; i < n; i++)
        for (long long j = 0; j < n; j++) x[j*n + i] = w[i*n + j];
    lines_solve(c, d, r, n, x);
}

double lines_hand(const double *restrict u, double r, long long n, double *restrict work)
{
    double *c = work, *d = work + n, *a = work + 2*n, *b = a + n*n, *w = b + n*n, s = 0;
    line_factors(r, n, c, d);
    lines_step(u, c, d, r, n, a, w);
    for (int k = 1; k < 6; k++) {
        lines_step(a, c, d, r, n, b, w);
        double *t = a;
        a = b, b = t;
    }
    for (long long i = 0; i < n*n; i++) s += a[i]*a[i];
    return s;
}

void lines_grad_hand(const double *restrict u, double r, long long n, double *restrict out, double *restrict work)
{
    double *c = work, *d = work + n, *x = work + 2*n, *restrict w = x + 7*n*n, *restrict g = w + n*n, *restrict h = g + n*n;
    double by_r = 0;
    line_factors(r, n, c, d);
    memcpy(x, u, n*n*sizeof(double));
    for (int k = 0; k < 6; k++) lines_step(x + k*n*n, c, d, r, n, x + (k + 1)*n*n, w);
    for (long long i = 0; i < n*n; i++) g[i] = 2*x[6*n*n + i];
    for (int k = 5; k >= 0; k--) {
        const double *restrict y = x + (k + 1)*n*n, *restrict v = x + k*n*n;
        lines_solve(c, d, r, n, g); /* the matrix is symmetric */
        for (long long j = 0; j < n; j++) {
            double s = 0;
            for (long long i = 0; i < n; i++) s += g[j*n + i]*(2*y[j*n + i] - beside(y + j*n + i, j, n));
            by_r -= s;
        }
        for (long long j = 0; j < n; j++)
            for (long long i = 0; i < n; i++) h[i*n + j] = g[j*n + i];
        for (long long i = 0; i < n; i++) {
            double s = 0;
            for (long long j = 0; j < n; j++) s += h[i*n + j]*(beside(v + i*n + j, i, n) - 2*v[i*n + j]);
            by_r += s;
        }
        double *restrict to = k ? g : out;
        for (long long i = 0; i < n; i++)
            for (long long j = 0; j < n; j++) to[i*n + j] = (1 - 2*r)*h[i*n + j] + r*beside(h + i*n + j, i, n);
    }
    out[n*n] = by_r;
}

/* the means of all windows, from the sums of their columns, of one image and of a product */
static void ssim_rows(const double *restrict row, long long m, double *restrict out)
{
    for (long long j = 0; j < m; j++) out[j] = (row[j] + row[j + 1] + row[j + 2] + row[j + 3] + row[j + 4])/25;
}

static void ssim_means(const double *restrict a, long long n, double *restrict row, double *restrict out)
{
    for (long long i = 0; i < n - 4; i++) {
        const double *p = a + i*n, *q = p + n, *r = q + n, *s = r + n, *t = s + n;
        for (long long j = 0; j < n; j++) row[j] = p[j] + q[j] + r[j] + s[j] + t[j];
        ssim_rows(row, n - 4, out + i*(n - 4));
    }
}

static void ssim_products(const double *restrict a, const double *restrict b, long long n, double *restrict row,
    double *restrict out)
{
    for (long long i = 0; i < n - 4; i++) {
        for (long long j = 0; j < n; j++) {
            double s = 0;
            for (int k = 0; k < 5; k++) s += a[(i + k)*n + j]*b[(i + k)*n + j];
            row[j] = s;
        }
        ssim_rows(row, n - 4, out + i*(n - 4));
    }
}

/* sum = the sums of g over the windows that have a pixel */
static void ssim_back(const double *restrict g, long long n, double *restrict row, double *restrict sum)
{
    const long long m = n - 4;
    memset(sum, 0, n*n*sizeof(double));
    for (long long i = 0; i < m; i++) {
        memset(row, 0, n*sizeof(double));
        for (int k = 0; k < 5; k++)
            for (long long j = 0; j < m; j++) row[j + k] += g[i*m + j];
        for (int k = 0; k < 5; k++)
            for (long long j = 0; j < n; j++) sum[(i + k)*n + j] += row[j];
    }
}

static void ssim_boxes(const double *x, const double *y, long long n, double *row)
{
    const long long m = n - 4;
    double *means = row + n;
    ssim_means(x, n, row, means);
    ssim_means(y, n, row, means + m*m);
    ssim_products(x, x, n, row, means + 2*m*m);
    ssim_products(y, y, n, row, means + 3*m*m);
    ssim_products(x, y, n, row, means + 4*m*m);
}

double ssim_hand(const double *x, const double *y, long long n, double *work)
{
    const long long m = n - 4;
    const double *restrict mx = work + n, *restrict my = mx + m*m, *restrict xx = my + m*m,
                 *restrict yy = xx + m*m, *restrict xy = yy + m*m;
    double s = 0;
    ssim_boxes(x, y, n, work);
    for (long long i = 0; i < m*m; i++) {
        const double a = mx[i], b = my[i];
        s += (2*a*b + 1e-4)*(2*(xy[i] - a*b) + 9e-4)/((a*a + b*b + 1e-4)*(xx[i] - a*a + (yy[i] - b*b) + 9e-4));
    }
    return s/(m*m);
}

void ssim_grad_hand(const double *restrict x, const double *restrict y, long long n, double *restrict out, double *work)
{
    const long long m = n - 4;
    double *restrict mx = work + n, *restrict my = mx + m*m, *restrict xx = my + m*m, *restrict yy = xx + m*m,
           *restrict xy = yy + m*m, *sum = xy + m*m;
    ssim_boxes(x, y, n, work);
    for (long long i = 0; i < m*m; i++) {
        const double a = mx[i], b = my[i], A = 2*a*b + 1e-4, B = 2*(xy[i] - a*b) + 9e-4, C = a*a + b*b + 1e-4,
                     D = xx[i] - a*a + (yy[i] - b*b) + 9e-4, r = 1/(25.0*m*m*C*D), by_a = B*r, by_b = A*r,
                     q = A*B*r, by_c = -q/C, by_d = -q/D;
        mx[i] = 2*b*(by_a - by_b) + 2*a*(by_c - by_d);
        xx[i] = by_d;
        xy[i] = 2*by_b;
    }
    ssim_back(mx, n, work, out);
    ssim_back(xx, n, work, sum);
    for (long long i = 0; i < n*n; i++) out[i] += 2*x[i]*sum[i];
    ssim_back(xy, n, work, sum);
    for (long long i = 0; i < n*n; i++) out[i] += y[i]*sum[i];
}

enum { PASSES = 10 };

/* q = (A + 3) p, from A transposed: the sums of all rows as one vector */
static void conjugate_product(const double *restrict t, const double *restrict p, long long n, double *restrict q)
{
    for (long long i = 0; i < n; i++) q[i] = 3*p[i];
    for (long long j = 0; j < n; j++)
        for (long long i = 0; i < n; i++) q[i] += t[j*n + i]*p[j];
}

static double conjugate_dot(const double *a, const double *b, long long n)
{
    double s[4] = {0};
    for (long long i = 0; i + 3 < n; i += 4)
        for (int k = 0; k < 4; k++) s[k] += a[i + k]*b[i + k];
    for (long long i = n - n % 4; i < n; i++) s[0] += a[i]*b[i];
    return s[0] + s[1] + s[2] + s[3];
}

/* rows r, p, q of each step, one after the other; the next step's r and p follow */
static void conjugate_steps(const double *restrict a, const double *b, long long n, double *restrict t, double *x,
    double *s, double *rr, double *pq)
{
    for (long long i = 0; i < n; i++)
        for (long long j = 0; j < n; j++) t[j*n + i] = a[i*n + j];
    memset(x, 0, (size_t)n*sizeof *x);
    memcpy(s, b, (size_t)n*sizeof *s);
    memcpy(s + n, b, (size_t)n*sizeof *s);
    rr[0] = conjugate_dot(b, b, n);
    for (int k = 0; k < PASSES; k++, s += 3*n) {
        double *r = s, *p = s + n, *q = s + 2*n, *r2 = s + 3*n, *p2 = s + 4*n;
        conjugate_product(t, p, n, q);
        pq[k] = conjugate_dot(p, q, n);
        const double alpha = rr[k]/pq[k];
        for (long long i = 0; i < n; i++) {
            x[i] += alpha*p[i];
            r2[i] = r[i] - alpha*q[i];
        }
        rr[k + 1] = conjugate_dot(r2, r2, n);
        const double beta = rr[k + 1]/rr[k];
        for (long long i = 0; i < n; i++) p2[i] = r2[i] + beta*p[i];
    }
}

double conjugate_hand(const double *a, const double *b, long long n, double *work)
{
    double *x = work + n*n, rr[PASSES + 1], pq[PASSES];
    conjugate_steps(a, b, n, work, x, x + n, rr, pq);
    return conjugate_dot(x, x, n);
}

void conjugate_grad_hand(const double *restrict a, const double *restrict b, long long n, double *restrict out,
    double *work)
{
    double *x = work + n*n, *by_r = x + n, *by_p = by_r + n, *by_q = by_p + n, *next = by_q + n, *s = next + n,
           rr[PASSES + 1], pq[PASSES], by_rr = 0;
    conjugate_steps(a, b, n, work, x, s, rr, pq);
    memset(out, 0, (size_t)(n*n)*sizeof *out);
    memset(by_r, 0, (size_t)n*sizeof *by_r);
    memset(by_p, 0, (size_t)n*sizeof *by_p);
    for (long long i = 0; i < n; i++) x[i] *= 2;
    for (int k = PASSES - 1; k >= 0; k--) {
        const double *p = s + (3*k + 1)*n, *q = p + n, *r2 = q + n, alpha = rr[k]/pq[k], beta = rr[k + 1]/rr[k],
                     by_beta = conjugate_dot(by_p, p, n);
        by_rr += by_beta/rr[k];
        for (long long i = 0; i < n; i++) by_r[i] += by_p[i] + 2*by_rr*r2[i];
        const double by_alpha = conjugate_dot(x, p, n) - conjugate_dot(by_r, q, n), by_pq = -by_alpha*alpha/pq[k];
        by_rr = by_alpha/pq[k] - by_beta*beta/rr[k];
        for (long long i = 0; i < n; i++) {
            by_q[i] = by_pq*p[i] - alpha*by_r[i];
            next[i] = beta*by_p[i] + alpha*x[i] + by_pq*q[i] + 3*by_q[i];
        }
        for (long long i = 0; i < n; i++)
            for (long long j = 0; j < n; j++) {
                out[i*n + j] += by_q[i]*p[j];
                next[j] += by_q[i]*a[i*n + j];
            }
        memcpy(by_p, next, (size_t)n*sizeof *next);
    }
    for (long long i = 0; i < n; i++) out[n*n + i] = by_r[i] + by_p[i] + 2*by_rr*b[i];
}

/* ------------------------------------------------------------------ brackets: the best place of the last product of
 * each span is kept; backwards, long spans first. */

static void brackets_spans(const double *d, long long m, double *t, long long *at)
{
    memset(t, 0, (size_t)(m*m)*sizeof *t);
    for (long long s = 1; s < m; s++)
        for (long long i = 0; i + s < m; i++) {
            const long long j = i + s;
            double least = INFINITY;
            long long best = i;
            for (long long k = i; k < j; k++) {
                const double c = t[i*m + k] + t[(k + 1)*m + j] + d[i]*d[k + 1]*d[j + 1];
                best = c < least ? k : best;
                least = c < least ? c : least;
            }
            t[i*m + j] = least;
            if (at) at[i*m + j] = best;
        }
}

double brackets_hand(const double *d, long long n, double *work)
{
    brackets_spans(d, n - 1, work, NULL);
    return work[n - 2];
}

void brackets_grad_hand(const double *restrict d, long long n, double *restrict out, double *restrict work)
{
    const long long m = n - 1;
    double *by = work + m*m;
    long long *at = (long long *)(by + m*m);
    brackets_spans(d, m, work, at);
    memset(by, 0, (size_t)(m*m)*sizeof *by);
    memset(out, 0, (size_t)n*sizeof *out);
    by[m - 1] = 1;
    for (long long s = m - 1; s > 0; s--)
        for (long long i = 0; i + s < m; i++) {
            const long long j = i + s, k = at[i*m + j];
            const double g = by[i*m + j];
            by[i*m + k] += g;
            by[(k + 1)*m + j] += g;
            out[i] += g*d[k + 1]*d[j + 1];
            out[k + 1] += g*d[i]*d[j + 1];
            out[j + 1] += g*d[i]*d[k + 1];
        }
}
