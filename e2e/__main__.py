from e2e.running import main

main()
