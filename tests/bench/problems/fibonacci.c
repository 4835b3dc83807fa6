/* Fibonacci's recursion by hand: the adjoint is known on the way down, the value on the way up. */
double fibonacci(double x, double y, long long n)
{
    return n < 2 ? x : y*fibonacci(x, y, n - 1) + x*fibonacci(x, y, n - 2);
}

static double walk(double x, double y, long long n, double bar, double *g)
{
    if (n < 2) {
        g[0] += bar;
        return x;
    }
    const double one = walk(x, y, n - 1, bar*y, g), two = walk(x, y, n - 2, bar*x, g);
    g[0] += bar*two;
    g[1] += bar*one;
    return y*one + x*two;
}

void fibonacci_grad(double x, double y, long long n, double *g)
{
    g[0] = g[1] = 0;
    walk(x, y, n, 1, g);
}
