"""DeepInfer core: step loop, native scheduler, seams and plugin manager."""
