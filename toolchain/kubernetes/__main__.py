from toolchain.kubernetes.cli import main

main()
