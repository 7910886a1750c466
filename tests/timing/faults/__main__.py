from tests.timing.faults.cli import main

main()
