"""hyad.codegen"""
