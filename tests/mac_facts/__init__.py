"""What real Macs answered, as public measurements print it, and the same asked of openmps.

Sources, with the marks that facts carry:

- C: kern0x1b/charon, ``packages/a/apple-backports/facts/MetalPerformanceShaders``, one Apple M4 Pro, macOS 27.0
  (26A428) for kernels and graphs, macOS 26.5 for random numbers, states and row bytes. Numbers alone.
- J: JuliaGPU/Metal.jl, ``test/mps``, Macs of its continuous integration, macOS 13 to 15.
- P: a public client's tests that run on Macs.

Grades: A, the Mac's number is printed; B, another program with the formula given here agreed with the Mac within a
stated tolerance, so that the number is the formula's; C, prose alone.
"""
