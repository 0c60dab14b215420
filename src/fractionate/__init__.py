"""Fractionate: which knob of a distillation matters?"""
