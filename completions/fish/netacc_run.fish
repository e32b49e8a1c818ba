complete -c netacc_run -s f -d 'Configuration file' -r -F
complete -c netacc_run -l profile -d 'Parameters that go together' -r -f -a "latency\t''
throughput\t''
polite\t''"
complete -c netacc_run -s s -d 'size of a message buffer in bytes' -r
complete -c netacc_run -s p -d 'most connections per QP' -r
complete -c netacc_run -s t -d 'number of I/O threads' -r
complete -c netacc_run -s A -d 'CPUs for the I/O threads' -r
complete -c netacc_run -s F -d 'fast connect mode' -r
complete -c netacc_run -s P -d 'longest time to poll before a thread sleeps, in ms' -r
complete -c netacc_run -l poll-tcp -d 'longest time to poll the kernel\'s sockets before a thread sleeps, in us' -r
complete -c netacc_run -s i -d 'completion vector of the CQs' -r
complete -c netacc_run -l rdma-stall -d 'time without progress until a QP is given up, in ms' -r
complete -c netacc_run -l kernel-policy -d 'keep what the kernel treats specially on TCP' -r
complete -c netacc_run -l rdma-keeper -d 'how long what a process leaves under way may outlive it, in s' -r
complete -c netacc_run -l paths -d 'paths that connections may take, the preferred one first' -r
complete -c netacc_run -l io-uring -d 'what becomes of a program\'s io_uring' -r
complete -c netacc_run -s h -l help -d 'Show the help'
complete -c netacc_run -s v -l version -d 'Show the version'
complete -c netacc_run -s d -d 'Debug: log from level 1 on'
complete -c netacc_run -s T -d 'use TCP first in connect'
# Behind the options: the command line of the program that is started, or the processes that have the library.
complete -c netacc_run -x -a '(__fish_complete_subcommand -f --profile -s -p -t -A -F -P --poll-tcp -i --rdma-stall --kernel-policy --rdma-keeper --paths --io-uring)'
