# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_netacc_global_optspecs
    string join \n h/help V/version
end

function __fish_netacc_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_netacc_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_netacc_using_subcommand
    set -l cmd (__fish_netacc_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c netacc -n "__fish_netacc_needs_command" -s h -l help -d 'Print help'
complete -c netacc -n "__fish_netacc_needs_command" -s V -l version -d 'Print version'
complete -c netacc -n "__fish_netacc_needs_command" -f -a "run" -d 'Run COMMAND with its TCP connections accelerated by NetACC'
complete -c netacc -n "__fish_netacc_needs_command" -f -a "ss" -d 'Show the NetACC connections of a process'
complete -c netacc -n "__fish_netacc_needs_command" -f -a "ps" -d 'Show which processes of this host are accelerated'
complete -c netacc -n "__fish_netacc_needs_command" -f -a "capture" -d 'Write the bytes of accelerated connections to a pcapng file'
complete -c netacc -n "__fish_netacc_needs_command" -f -a "cfg" -d 'Show the parameters, or set one while a program runs'
complete -c netacc -n "__fish_netacc_needs_command" -f -a "doctor" -d 'Say what keeps a program, a process, a connection or this host from acceleration'
complete -c netacc -n "__fish_netacc_needs_command" -f -a "metrics" -d 'Say what all processes do, for Prometheus and for a browser'
complete -c netacc -n "__fish_netacc_needs_command" -f -a "top" -d 'Watch the accelerated processes of this host, and their connections'
complete -c netacc -n "__fish_netacc_needs_command" -f -a "trace" -d 'Show what has become of connections, also of killed processes'
complete -c netacc -n "__fish_netacc_needs_command" -f -a "bench" -d 'Measure TCP connections with and without the library, side by side'
complete -c netacc -n "__fish_netacc_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c netacc -n "__fish_netacc_using_subcommand run" -s f -d 'Configuration file' -r -F
complete -c netacc -n "__fish_netacc_using_subcommand run" -l profile -d 'Parameters that go together' -r -f -a "latency\t''
throughput\t''
polite\t''"
complete -c netacc -n "__fish_netacc_using_subcommand run" -s s -d 'size of a message buffer in bytes' -r
complete -c netacc -n "__fish_netacc_using_subcommand run" -s p -d 'most connections per QP' -r
complete -c netacc -n "__fish_netacc_using_subcommand run" -s t -d 'number of I/O threads' -r
complete -c netacc -n "__fish_netacc_using_subcommand run" -s A -d 'CPUs for the I/O threads' -r
complete -c netacc -n "__fish_netacc_using_subcommand run" -s F -d 'fast connect mode' -r
complete -c netacc -n "__fish_netacc_using_subcommand run" -s P -d 'longest time to poll before a thread sleeps, in ms' -r
complete -c netacc -n "__fish_netacc_using_subcommand run" -l poll-tcp -d 'longest time to poll the kernel\'s sockets before a thread sleeps, in us' -r
complete -c netacc -n "__fish_netacc_using_subcommand run" -s i -d 'completion vector of the CQs' -r
complete -c netacc -n "__fish_netacc_using_subcommand run" -l rdma-stall -d 'time without progress until a QP is given up, in ms' -r
complete -c netacc -n "__fish_netacc_using_subcommand run" -l kernel-policy -d 'keep what the kernel treats specially on TCP' -r
complete -c netacc -n "__fish_netacc_using_subcommand run" -l rdma-keeper -d 'how long what a process leaves under way may outlive it, in s' -r
complete -c netacc -n "__fish_netacc_using_subcommand run" -l paths -d 'paths that connections may take, the preferred one first' -r
complete -c netacc -n "__fish_netacc_using_subcommand run" -l io-uring -d 'what becomes of a program\'s io_uring' -r
complete -c netacc -n "__fish_netacc_using_subcommand run" -s h -l help -d 'Show the help'
complete -c netacc -n "__fish_netacc_using_subcommand run" -s v -l version -d 'Show the version'
complete -c netacc -n "__fish_netacc_using_subcommand run" -s d -d 'Debug: log from level 1 on'
complete -c netacc -n "__fish_netacc_using_subcommand run" -s T -d 'use TCP first in connect'
complete -c netacc -n "__fish_netacc_using_subcommand ss" -s p -d 'Process, by its number or name' -r
complete -c netacc -n "__fish_netacc_using_subcommand ss" -s s -d 'What to show' -r -f -a "all\t''
cfg\t''
cnt\t''
mem\t''
qp\t''
sock\t''"
complete -c netacc -n "__fish_netacc_using_subcommand ss" -l port -d 'Connections with that port' -r
complete -c netacc -n "__fish_netacc_using_subcommand ss" -l peer -d 'Connections with that peer, or with peers in that network' -r
complete -c netacc -n "__fish_netacc_using_subcommand ss" -l path -d 'Connections with a direction on that path' -r -f -a "tcp\t''
shm\t''
rdma\t''
utcp\t''"
complete -c netacc -n "__fish_netacc_using_subcommand ss" -l reason -d 'Connections with that reason' -r -f -a "none\t''
negotiating\t''
peer-remote\t''
peer-without-library\t''
listener-without-library\t''
disabled-by-config\t''
sampled-out\t''
peer-refused\t''
version-mismatch\t''
not-authenticated\t''
no-memory\t''
no-descriptor\t''
channel-full\t''
inherited-by-fork\t''
inherited-by-exec\t''
passed-by-scm-rights\t''
socket-option\t''
urgent-data\t''
stdio-stream\t''
splice\t''
several-epoll-sets\t''
duplicate-in-epoll\t''
peer-asked-for-tcp\t''
peer-corrupt\t''
disconnected\t''
self-connect\t''
uncounted-bytes\t''
shutting-down\t''
io-uring\t''
not-stream\t''
not-started\t''
no-record\t''
channel-failed\t''
internal\t''
rdma-core-missing\t''
no-rdma-device\t''
memlock\t''
rdma-refused\t''
rdma-lost\t''
paths-exclude-it\t''
forked-after-rdma\t''
not-claimed\t''
waits-unseen\t''
not-in-reach\t''
ipsec\t''
kernel-policy\t''
rule\t''
config-unreadable\t''
utcp-no-privilege\t''
utcp-no-support\t''
utcp-no-route\t''
utcp-unfit\t''
utcp-given-back\t''
agreed\t''"
complete -c netacc -n "__fish_netacc_using_subcommand ss" -l sort -d 'Order of the connections' -r -f -a "fd\t''
peer\t''
path\t''
reason\t''
sent\t''
received\t''
messages\t''
answer-p50\t''
answer-p99\t''
serve-p99\t''
age\t''"
complete -c netacc -n "__fish_netacc_using_subcommand ss" -s w -d 'Again and again' -r
complete -c netacc -n "__fish_netacc_using_subcommand ss" -s n -d 'How often' -r
complete -c netacc -n "__fish_netacc_using_subcommand ss" -s h -l help -d 'Show the help'
complete -c netacc -n "__fish_netacc_using_subcommand ss" -s v -l version -d 'Show the version'
complete -c netacc -n "__fish_netacc_using_subcommand ss" -l wide -d 'Every column, and counters that are 0'
complete -c netacc -n "__fish_netacc_using_subcommand ss" -s c -d 'Clear what ended processes left'
complete -c netacc -n "__fish_netacc_using_subcommand ss" -l json -d 'Print JSON'
complete -c netacc -n "__fish_netacc_using_subcommand ps" -s w -d 'Again and again' -r
complete -c netacc -n "__fish_netacc_using_subcommand ps" -s n -d 'How often' -r
complete -c netacc -n "__fish_netacc_using_subcommand ps" -l wide -d 'Every column: bytes by path, and the container, too'
complete -c netacc -n "__fish_netacc_using_subcommand ps" -l json -d 'Print JSON'
complete -c netacc -n "__fish_netacc_using_subcommand ps" -s h -l help -d 'Print help'
complete -c netacc -n "__fish_netacc_using_subcommand ps" -s V -l version -d 'Print version'
complete -c netacc -n "__fish_netacc_using_subcommand capture" -s p -l pid -d 'Process, by its number or name; several with commas' -r
complete -c netacc -n "__fish_netacc_using_subcommand capture" -s w -l write -d 'A file that is not there yet, or - for standard output' -r -F
complete -c netacc -n "__fish_netacc_using_subcommand capture" -s c -d 'End after so many packets' -r
complete -c netacc -n "__fish_netacc_using_subcommand capture" -s s -d 'Keep so many bytes of each packet [default: all]' -r
complete -c netacc -n "__fish_netacc_using_subcommand capture" -s d -l duration -d 'End after so long' -r
complete -c netacc -n "__fish_netacc_using_subcommand capture" -l port -d 'Connections with that port' -r
complete -c netacc -n "__fish_netacc_using_subcommand capture" -l peer -d 'Connections with that peer, or with peers in that network' -r
complete -c netacc -n "__fish_netacc_using_subcommand capture" -l path -d 'Connections with a direction on that path' -r -f -a "tcp\t''
shm\t''
rdma\t''
utcp\t''"
complete -c netacc -n "__fish_netacc_using_subcommand capture" -s h -l help -d 'Print help'
complete -c netacc -n "__fish_netacc_using_subcommand capture" -s V -l version -d 'Print version'
complete -c netacc -n "__fish_netacc_using_subcommand cfg; and not __fish_seen_subcommand_from list get set reload help" -s h -l help -d 'Print help'
complete -c netacc -n "__fish_netacc_using_subcommand cfg; and not __fish_seen_subcommand_from list get set reload help" -s V -l version -d 'Print version'
complete -c netacc -n "__fish_netacc_using_subcommand cfg; and not __fish_seen_subcommand_from list get set reload help" -f -a "list" -d 'Show every parameter, and when a change takes effect'
complete -c netacc -n "__fish_netacc_using_subcommand cfg; and not __fish_seen_subcommand_from list get set reload help" -f -a "get" -d 'Show some parameters; of one its value alone'
complete -c netacc -n "__fish_netacc_using_subcommand cfg; and not __fish_seen_subcommand_from list get set reload help" -f -a "set" -d 'Set a parameter of processes that run'
complete -c netacc -n "__fish_netacc_using_subcommand cfg; and not __fish_seen_subcommand_from list get set reload help" -f -a "reload" -d 'Have processes that run read the rules of their file again'
complete -c netacc -n "__fish_netacc_using_subcommand cfg; and not __fish_seen_subcommand_from list get set reload help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c netacc -n "__fish_netacc_using_subcommand cfg; and __fish_seen_subcommand_from list" -s p -l pid -d 'Process, by its number or name' -r
complete -c netacc -n "__fish_netacc_using_subcommand cfg; and __fish_seen_subcommand_from list" -l all -d 'All processes of this host that have the library'
complete -c netacc -n "__fish_netacc_using_subcommand cfg; and __fish_seen_subcommand_from list" -l json -d 'Print JSON'
complete -c netacc -n "__fish_netacc_using_subcommand cfg; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c netacc -n "__fish_netacc_using_subcommand cfg; and __fish_seen_subcommand_from get" -s p -l pid -d 'Process, by its number or name' -r
complete -c netacc -n "__fish_netacc_using_subcommand cfg; and __fish_seen_subcommand_from get" -l all -d 'All processes of this host that have the library'
complete -c netacc -n "__fish_netacc_using_subcommand cfg; and __fish_seen_subcommand_from get" -l json -d 'Print JSON'
complete -c netacc -n "__fish_netacc_using_subcommand cfg; and __fish_seen_subcommand_from get" -s h -l help -d 'Print help'
complete -c netacc -n "__fish_netacc_using_subcommand cfg; and __fish_seen_subcommand_from set" -s p -l pid -d 'Process, by its number or name' -r
complete -c netacc -n "__fish_netacc_using_subcommand cfg; and __fish_seen_subcommand_from set" -l wait -d 'How long a process is waited for (default: 2)' -r
complete -c netacc -n "__fish_netacc_using_subcommand cfg; and __fish_seen_subcommand_from set" -l all -d 'All processes of this host that have the library'
complete -c netacc -n "__fish_netacc_using_subcommand cfg; and __fish_seen_subcommand_from set" -l json -d 'Print JSON'
complete -c netacc -n "__fish_netacc_using_subcommand cfg; and __fish_seen_subcommand_from set" -s h -l help -d 'Print help'
complete -c netacc -n "__fish_netacc_using_subcommand cfg; and __fish_seen_subcommand_from reload" -s p -l pid -d 'Process, by its number or name' -r
complete -c netacc -n "__fish_netacc_using_subcommand cfg; and __fish_seen_subcommand_from reload" -l wait -d 'How long a process is waited for (default: 2)' -r
complete -c netacc -n "__fish_netacc_using_subcommand cfg; and __fish_seen_subcommand_from reload" -l all -d 'All processes of this host that have the library'
complete -c netacc -n "__fish_netacc_using_subcommand cfg; and __fish_seen_subcommand_from reload" -l json -d 'Print JSON'
complete -c netacc -n "__fish_netacc_using_subcommand cfg; and __fish_seen_subcommand_from reload" -s h -l help -d 'Print help'
complete -c netacc -n "__fish_netacc_using_subcommand cfg; and __fish_seen_subcommand_from help" -f -a "list" -d 'Show every parameter, and when a change takes effect'
complete -c netacc -n "__fish_netacc_using_subcommand cfg; and __fish_seen_subcommand_from help" -f -a "get" -d 'Show some parameters; of one its value alone'
complete -c netacc -n "__fish_netacc_using_subcommand cfg; and __fish_seen_subcommand_from help" -f -a "set" -d 'Set a parameter of processes that run'
complete -c netacc -n "__fish_netacc_using_subcommand cfg; and __fish_seen_subcommand_from help" -f -a "reload" -d 'Have processes that run read the rules of their file again'
complete -c netacc -n "__fish_netacc_using_subcommand cfg; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c netacc -n "__fish_netacc_using_subcommand doctor" -l json -d 'Print JSON'
complete -c netacc -n "__fish_netacc_using_subcommand doctor" -s h -l help -d 'Print help'
complete -c netacc -n "__fish_netacc_using_subcommand doctor" -s V -l version -d 'Print version'
complete -c netacc -n "__fish_netacc_using_subcommand metrics" -l listen -d 'Serve them: PORT or ADDRESS:PORT of loopback, or unix:PATH' -r
complete -c netacc -n "__fish_netacc_using_subcommand metrics" -l user -d 'Answer this user, too, by name or number; several with commas' -r
complete -c netacc -n "__fish_netacc_using_subcommand metrics" -l textfile -d 'Write them to a file, for node_exporter' -r -F
complete -c netacc -n "__fish_netacc_using_subcommand metrics" -l every -d 'Write the file again and again' -r
complete -c netacc -n "__fish_netacc_using_subcommand metrics" -s h -l help -d 'Print help'
complete -c netacc -n "__fish_netacc_using_subcommand metrics" -s V -l version -d 'Print version'
complete -c netacc -n "__fish_netacc_using_subcommand top" -s d -l delay -d 'Look again after so long [default: 1]' -r
complete -c netacc -n "__fish_netacc_using_subcommand top" -s h -l help -d 'Print help'
complete -c netacc -n "__fish_netacc_using_subcommand top" -s V -l version -d 'Print version'
complete -c netacc -n "__fish_netacc_using_subcommand trace; and not __fish_seen_subcommand_from list show histogram export help" -s h -l help -d 'Print help'
complete -c netacc -n "__fish_netacc_using_subcommand trace; and not __fish_seen_subcommand_from list show histogram export help" -s V -l version -d 'Print version'
complete -c netacc -n "__fish_netacc_using_subcommand trace; and not __fish_seen_subcommand_from list show histogram export help" -f -a "list" -d 'Show which traces there are'
complete -c netacc -n "__fish_netacc_using_subcommand trace; and not __fish_seen_subcommand_from list show histogram export help" -f -a "show" -d 'Show the events of connections'
complete -c netacc -n "__fish_netacc_using_subcommand trace; and not __fish_seen_subcommand_from list show histogram export help" -f -a "histogram" -d 'Show how long wake-ups, sleeps, agreements and answers took'
complete -c netacc -n "__fish_netacc_using_subcommand trace; and not __fish_seen_subcommand_from list show histogram export help" -f -a "export" -d 'Write the events for the viewers of Chrome and Perfetto'
complete -c netacc -n "__fish_netacc_using_subcommand trace; and not __fish_seen_subcommand_from list show histogram export help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c netacc -n "__fish_netacc_using_subcommand trace; and __fish_seen_subcommand_from list" -l json -d 'Print JSON'
complete -c netacc -n "__fish_netacc_using_subcommand trace; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c netacc -n "__fish_netacc_using_subcommand trace; and __fish_seen_subcommand_from show" -s p -l pid -d 'Process, running or not, by its number or name' -r
complete -c netacc -n "__fish_netacc_using_subcommand trace; and __fish_seen_subcommand_from show" -l file -d 'A file that holds a trace' -r -F
complete -c netacc -n "__fish_netacc_using_subcommand trace; and __fish_seen_subcommand_from show" -l port -d 'Connections with that port, here or at the peer' -r
complete -c netacc -n "__fish_netacc_using_subcommand trace; and __fish_seen_subcommand_from show" -l peer -d 'Connections with that peer; also a network: 10.0.0.0/8' -r
complete -c netacc -n "__fish_netacc_using_subcommand trace; and __fish_seen_subcommand_from show" -l event -d 'Events of that name' -r
complete -c netacc -n "__fish_netacc_using_subcommand trace; and __fish_seen_subcommand_from show" -l last -d 'So many events of each connection, the last ones' -r
complete -c netacc -n "__fish_netacc_using_subcommand trace; and __fish_seen_subcommand_from show" -l follow -d 'Go on with what is new, as long as a process runs'
complete -c netacc -n "__fish_netacc_using_subcommand trace; and __fish_seen_subcommand_from show" -l json -d 'Print JSON'
complete -c netacc -n "__fish_netacc_using_subcommand trace; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help'
complete -c netacc -n "__fish_netacc_using_subcommand trace; and __fish_seen_subcommand_from histogram" -s p -l pid -d 'Process, running or not, by its number or name' -r
complete -c netacc -n "__fish_netacc_using_subcommand trace; and __fish_seen_subcommand_from histogram" -l file -d 'A file that holds a trace' -r -F
complete -c netacc -n "__fish_netacc_using_subcommand trace; and __fish_seen_subcommand_from histogram" -l port -d 'Connections with that port, here or at the peer' -r
complete -c netacc -n "__fish_netacc_using_subcommand trace; and __fish_seen_subcommand_from histogram" -l peer -d 'Connections with that peer; also a network: 10.0.0.0/8' -r
complete -c netacc -n "__fish_netacc_using_subcommand trace; and __fish_seen_subcommand_from histogram" -l json -d 'Print JSON'
complete -c netacc -n "__fish_netacc_using_subcommand trace; and __fish_seen_subcommand_from histogram" -s h -l help -d 'Print help'
complete -c netacc -n "__fish_netacc_using_subcommand trace; and __fish_seen_subcommand_from export" -s p -l pid -d 'Process, running or not, by its number or name' -r
complete -c netacc -n "__fish_netacc_using_subcommand trace; and __fish_seen_subcommand_from export" -l file -d 'A file that holds a trace' -r -F
complete -c netacc -n "__fish_netacc_using_subcommand trace; and __fish_seen_subcommand_from export" -l port -d 'Connections with that port, here or at the peer' -r
complete -c netacc -n "__fish_netacc_using_subcommand trace; and __fish_seen_subcommand_from export" -l peer -d 'Connections with that peer; also a network: 10.0.0.0/8' -r
complete -c netacc -n "__fish_netacc_using_subcommand trace; and __fish_seen_subcommand_from export" -l event -d 'Events of that name' -r
complete -c netacc -n "__fish_netacc_using_subcommand trace; and __fish_seen_subcommand_from export" -l last -d 'So many events of each connection, the last ones' -r
complete -c netacc -n "__fish_netacc_using_subcommand trace; and __fish_seen_subcommand_from export" -s h -l help -d 'Print help'
complete -c netacc -n "__fish_netacc_using_subcommand trace; and __fish_seen_subcommand_from help" -f -a "list" -d 'Show which traces there are'
complete -c netacc -n "__fish_netacc_using_subcommand trace; and __fish_seen_subcommand_from help" -f -a "show" -d 'Show the events of connections'
complete -c netacc -n "__fish_netacc_using_subcommand trace; and __fish_seen_subcommand_from help" -f -a "histogram" -d 'Show how long wake-ups, sleeps, agreements and answers took'
complete -c netacc -n "__fish_netacc_using_subcommand trace; and __fish_seen_subcommand_from help" -f -a "export" -d 'Write the events for the viewers of Chrome and Perfetto'
complete -c netacc -n "__fish_netacc_using_subcommand trace; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c netacc -n "__fish_netacc_using_subcommand bench" -l rounds -d 'Rounds; each runs every kind once, in turn' -r
complete -c netacc -n "__fish_netacc_using_subcommand bench" -l seconds -d 'Measured seconds of each run' -r
complete -c netacc -n "__fish_netacc_using_subcommand bench" -l warmup -d 'Seconds before measuring starts, in each run' -r
complete -c netacc -n "__fish_netacc_using_subcommand bench" -l kinds -d 'Kinds of run to alternate; ratios are against the first [default: plain,accelerated; for `mixed` and `mixed-epoll` plain,server-only,client-only]' -r -f -a "plain\t'neither'
accelerated\t'both'
server-only\t'the server'
client-only\t'the client'"
complete -c netacc -n "__fish_netacc_using_subcommand bench" -l pin -d 'Where the two processes run' -r -f -a "auto\t'ping-pong: a CPU each; the others: wherever the scheduler puts them'
apart\t'a CPU each, always'
together\t'both on one CPU'
none\t'wherever the scheduler puts them'"
complete -c netacc -n "__fish_netacc_using_subcommand bench" -l load -d 'Keep N busy loops running beside everything' -r
complete -c netacc -n "__fish_netacc_using_subcommand bench" -l size -d 'pingpong, mixed, both with -epoll, rate, idle: bytes of a message' -r
complete -c netacc -n "__fish_netacc_using_subcommand bench" -l request -d 'reqrep: bytes of a request' -r
complete -c netacc -n "__fish_netacc_using_subcommand bench" -l response -d 'reqrep: bytes of a response' -r
complete -c netacc -n "__fish_netacc_using_subcommand bench" -s c -l connections -d 'reqrep: connections' -r
complete -c netacc -n "__fish_netacc_using_subcommand bench" -s t -l threads -d 'reqrep, rate: client threads' -r
complete -c netacc -n "__fish_netacc_using_subcommand bench" -s P -l pipeline -d 'reqrep: requests sent at once on a connection; the next batch follows when all are answered' -r
complete -c netacc -n "__fish_netacc_using_subcommand bench" -l write-size -d 'bulk: bytes of a write' -r
complete -c netacc -n "__fish_netacc_using_subcommand bench" -l idle-connections -d 'idle: connections' -r
complete -c netacc -n "__fish_netacc_using_subcommand bench" -l idle-seconds -d 'idle: seconds over which CPU time is counted' -r
complete -c netacc -n "__fish_netacc_using_subcommand bench" -l lib -d 'The library [default: $NETACC_LIB, or beside this program, then ../lib, /usr/local/lib, /usr/lib]' -r -F
complete -c netacc -n "__fish_netacc_using_subcommand bench" -l ss -d 'netacc_ss [default: beside this program, then $PATH]' -r -F
complete -c netacc -n "__fish_netacc_using_subcommand bench" -l json -d 'Write every run and the summary as JSON (- for standard output, instead of the table)' -r -F
complete -c netacc -n "__fish_netacc_using_subcommand bench" -l svg -d 'Draw the latency distributions as SVG' -r -F
complete -c netacc -n "__fish_netacc_using_subcommand bench" -s q -l quiet -d 'No progress on standard error'
complete -c netacc -n "__fish_netacc_using_subcommand bench" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c netacc -n "__fish_netacc_using_subcommand help; and not __fish_seen_subcommand_from run ss ps capture cfg doctor metrics top trace bench help" -f -a "run" -d 'Run COMMAND with its TCP connections accelerated by NetACC'
complete -c netacc -n "__fish_netacc_using_subcommand help; and not __fish_seen_subcommand_from run ss ps capture cfg doctor metrics top trace bench help" -f -a "ss" -d 'Show the NetACC connections of a process'
complete -c netacc -n "__fish_netacc_using_subcommand help; and not __fish_seen_subcommand_from run ss ps capture cfg doctor metrics top trace bench help" -f -a "ps" -d 'Show which processes of this host are accelerated'
complete -c netacc -n "__fish_netacc_using_subcommand help; and not __fish_seen_subcommand_from run ss ps capture cfg doctor metrics top trace bench help" -f -a "capture" -d 'Write the bytes of accelerated connections to a pcapng file'
complete -c netacc -n "__fish_netacc_using_subcommand help; and not __fish_seen_subcommand_from run ss ps capture cfg doctor metrics top trace bench help" -f -a "cfg" -d 'Show the parameters, or set one while a program runs'
complete -c netacc -n "__fish_netacc_using_subcommand help; and not __fish_seen_subcommand_from run ss ps capture cfg doctor metrics top trace bench help" -f -a "doctor" -d 'Say what keeps a program, a process, a connection or this host from acceleration'
complete -c netacc -n "__fish_netacc_using_subcommand help; and not __fish_seen_subcommand_from run ss ps capture cfg doctor metrics top trace bench help" -f -a "metrics" -d 'Say what all processes do, for Prometheus and for a browser'
complete -c netacc -n "__fish_netacc_using_subcommand help; and not __fish_seen_subcommand_from run ss ps capture cfg doctor metrics top trace bench help" -f -a "top" -d 'Watch the accelerated processes of this host, and their connections'
complete -c netacc -n "__fish_netacc_using_subcommand help; and not __fish_seen_subcommand_from run ss ps capture cfg doctor metrics top trace bench help" -f -a "trace" -d 'Show what has become of connections, also of killed processes'
complete -c netacc -n "__fish_netacc_using_subcommand help; and not __fish_seen_subcommand_from run ss ps capture cfg doctor metrics top trace bench help" -f -a "bench" -d 'Measure TCP connections with and without the library, side by side'
complete -c netacc -n "__fish_netacc_using_subcommand help; and not __fish_seen_subcommand_from run ss ps capture cfg doctor metrics top trace bench help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c netacc -n "__fish_netacc_using_subcommand help; and __fish_seen_subcommand_from cfg" -f -a "list" -d 'Show every parameter, and when a change takes effect'
complete -c netacc -n "__fish_netacc_using_subcommand help; and __fish_seen_subcommand_from cfg" -f -a "get" -d 'Show some parameters; of one its value alone'
complete -c netacc -n "__fish_netacc_using_subcommand help; and __fish_seen_subcommand_from cfg" -f -a "set" -d 'Set a parameter of processes that run'
complete -c netacc -n "__fish_netacc_using_subcommand help; and __fish_seen_subcommand_from cfg" -f -a "reload" -d 'Have processes that run read the rules of their file again'
complete -c netacc -n "__fish_netacc_using_subcommand help; and __fish_seen_subcommand_from trace" -f -a "list" -d 'Show which traces there are'
complete -c netacc -n "__fish_netacc_using_subcommand help; and __fish_seen_subcommand_from trace" -f -a "show" -d 'Show the events of connections'
complete -c netacc -n "__fish_netacc_using_subcommand help; and __fish_seen_subcommand_from trace" -f -a "histogram" -d 'Show how long wake-ups, sleeps, agreements and answers took'
complete -c netacc -n "__fish_netacc_using_subcommand help; and __fish_seen_subcommand_from trace" -f -a "export" -d 'Write the events for the viewers of Chrome and Perfetto'
# Behind the options: the command line of the program that is started, or the processes that have the library.
complete -c netacc -n '__fish_seen_subcommand_from run' -x -a '(__fish_complete_subcommand --fcs-skip=2 -f --profile -s -p -t -A -F -P --poll-tcp -i --rdma-stall --kernel-policy --rdma-keeper --paths --io-uring)'
complete -c netacc -n '__fish_seen_subcommand_from doctor' -x -a '(__fish_complete_subcommand --fcs-skip=2 )'
complete -c netacc -n '__fish_seen_subcommand_from ss' -f -a "(netacc ps 2>/dev/null | string replace -rf '^ *(\d+) +(\S+) .*' '\$1\t\$2')"
