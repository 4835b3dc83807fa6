"""hyad: symbolic differentiation of Hy models, with code generation."""
