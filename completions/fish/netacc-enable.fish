complete -c netacc-enable -l now -d 'Restart the services, too'
complete -c netacc-enable -l off -d 'Without the library again'
complete -c netacc-enable -l all -d 'All services that have been enabled'
complete -c netacc-enable -l list -d 'Say which these are'
complete -c netacc-enable -s h -l help -d 'Show this help'
complete -c netacc-enable -s v -l version -d 'Show the version'
# The services that systemd knows; with --off those that have been enabled.
complete -c netacc-enable -f
complete -c netacc-enable -n '__fish_seen_argument -l off' -a '(netacc-enable --list 2>/dev/null)'
complete -c netacc-enable -n 'not __fish_seen_argument -l off' -a '(begin
    systemctl list-unit-files --type=service --no-legend --no-pager
    systemctl list-units --all --plain --type=service --no-legend --no-pager
end 2>/dev/null | string replace -rf "^(\S*[^@\s])\.service\s.*" "\$1.service" | sort -u)'
