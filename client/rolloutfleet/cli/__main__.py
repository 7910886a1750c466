from rolloutfleet.cli import main

main()
