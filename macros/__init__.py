"""hyad.macros"""
