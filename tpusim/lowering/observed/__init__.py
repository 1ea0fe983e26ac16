"""Passes, and table lines marked `observed`, that programs showed before any measured run asked.

Without all of them 18 of the 123 measured runs move. The passes alone move four: three of Gemma 4
on 7x by 0.35 to 1.0 % (`reduce-at-once`), and the 480B encoder by 0.007 % (`merge-all-reduces`).
Lines of the table move five runs on v4 and v5p by 0.7 to 8.5 %, and nine on
v5e by up to 0.12 %. What else they are for, compiled programs show (`docs/compiler.md`).
"""
