from tests.faults.cli import main

main()
