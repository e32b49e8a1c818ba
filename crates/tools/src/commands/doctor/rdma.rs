//! RDMA on this host: devices, their ports and GIDs, the files and libraries that reach them.

use super::commands::{as_root, install_rdma_core};
use super::finding::Findings;
use super::look;
use super::remedy::{self, Remedy};
use crate::command;
use crate::show::shell_word;
use rustix::fs::{Access, AtFlags, CWD, accessat};
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const SYSFS: &str = "/sys";
const LIBRARIES: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];

/// A port of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// The device's name.
    pub device: String,
    /// Its number on the device.
    pub number: String,
    /// `ACTIVE` where it works.
    pub state: String,
    /// `Ethernet` or `InfiniBand`.
    pub layer: String,
    /// Its network interfaces.
    pub interfaces: Vec<String>,
    /// Its GIDs, without those that are zero.
    pub gids: Vec<Ipv6Addr>,
    /// Those of them that are of RoCE v2. (One may be of RoCE v1 as well.)
    pub v2: Vec<Ipv6Addr>,
    /// It speaks RoCE: its connection manager finds it by a GID that is the connection's address,
    /// and takes that of RoCE v2 where the device has any of them.
    pub is_roce: bool,
}

impl Port {
    /// Whether it can be used.
    pub fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }

    /// Its GIDs that are addresses of connections, of RoCE v2.
    fn addresses(&self) -> impl Iterator<Item = &Ipv6Addr> {
        self.v2.iter().filter(|gid| !gid.is_unicast_link_local())
    }

    /// It has RoCE v1 alone, by which it reaches its like in one Ethernet network.
    fn is_of_v1(&self) -> bool {
        let mut gids = self.gids.iter();
        self.is_roce && self.v2.is_empty() && gids.any(|gid| !gid.is_unicast_link_local())
    }

    /// Whether an address, on that interface, is this port's.
    pub fn has(&self, ip: IpAddr, interface: Option<&str>) -> bool {
        self.gids.contains(&as_gid(ip))
            || interface.is_some_and(|name| self.interfaces.iter().any(|own| own == name))
    }
}

fn as_gid(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

/// Whether there is any device.
pub fn has_devices() -> bool {
    !look::names(format!("{SYSFS}/class/infiniband")).is_empty()
}

/// The ports of all devices.
pub fn ports() -> Vec<Port> {
    ports_below(Path::new(SYSFS))
}

fn ports_below(sysfs: &Path) -> Vec<Port> {
    let devices = sysfs.join("class/infiniband");
    let mut ports = Vec::new();
    for device in look::names(&devices) {
        for number in look::names(devices.join(&device).join("ports")) {
            let port = devices.join(&device).join("ports").join(&number);
            // `4: ACTIVE`
            let state = look::file(port.join("state")).unwrap_or_default();
            let state = state.split(": ").last().unwrap_or_default().to_owned();
            let (gids, v2) = gids(&port);
            let layer = look::file(port.join("link_layer")).unwrap_or_default();
            // `1: CA`; of iWARP `4: RNIC`.
            let node = look::file(devices.join(&device).join("node_type")).unwrap_or_default();
            ports.push(Port {
                interfaces: interfaces(sysfs, &device, &port, &gids),
                v2,
                is_roce: layer == "Ethernet" && node.ends_with(" CA"),
                layer,
                device: device.clone(),
                number,
                state,
                gids,
            });
        }
    }
    ports
}

/// The GIDs of a port, and those of them that are of RoCE v2, each once.
fn gids(port: &Path) -> (Vec<Ipv6Addr>, Vec<Ipv6Addr>) {
    let (mut all, mut v2) = (Vec::new(), Vec::new());
    for index in look::names(port.join("gids")) {
        let text = look::file(port.join("gids").join(&index)).unwrap_or_default();
        let Ok(gid) = text.parse::<Ipv6Addr>() else { continue };
        if gid.is_unspecified() {
            continue;
        }
        // `RoCE v2`, or `IB/RoCE v1`
        let kind = look::file(port.join("gid_attrs/types").join(&index)).unwrap_or_default();
        for list in [Some(&mut all), (kind == "RoCE v2").then_some(&mut v2)].into_iter().flatten() {
            if !list.contains(&gid) {
                list.push(gid);
            }
        }
    }
    (all, v2)
}

/// The network interfaces of a port: by its GIDs' (RoCE), by the hardware that both belong to, by
/// its parent (rxe), or by the hardware address that is its GID (siw).
fn interfaces(sysfs: &Path, device: &str, port: &Path, gids: &[Ipv6Addr]) -> Vec<String> {
    let of_gids = port.join("gid_attrs/ndevs");
    let of_gids = look::names(&of_gids).into_iter().filter_map(|i| look::file(of_gids.join(i)));
    let parent = look::file(sysfs.join("class/infiniband").join(device).join("parent"));
    let mut found: Vec<String> = of_gids.chain(parent).filter(|name| !name.is_empty()).collect();
    let net = sysfs.join("class/net");
    for name in look::names(&net) {
        let is_same = net.join(&name).join("device/infiniband").join(device).exists();
        let address = look::file(net.join(&name).join("address")).unwrap_or_default();
        let octets: Vec<u8> =
            address.split(':').filter_map(|octet| u8::from_str_radix(octet, 16).ok()).collect();
        let is_gid = |gid: &Ipv6Addr| {
            let gid = gid.octets();
            octets.len() == 6 && gid[..6] == octets[..] && gid[6..].iter().all(|byte| *byte == 0)
        };
        let is_zero = octets.iter().all(|octet| *octet == 0);
        if is_same || (!is_zero && gids.iter().any(is_gid)) {
            found.push(name);
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Looks at everything that RDMA needs here.
pub fn devices(findings: &mut Findings) {
    let ports = ports();
    if ports.is_empty() {
        findings.ok("rdma", "no RDMA device: connections to other hosts stay on TCP");
        return;
    }
    for port in &ports {
        state(port, findings);
    }
    access(findings);
    libraries(findings);
}

/// What one port says.
pub fn state(port: &Port, findings: &mut Findings) {
    let Port { device, number, state, layer, interfaces, gids, is_roce, .. } = port;
    let on = match interfaces.as_slice() {
        [] => String::from("no network interface"),
        names => names.join(", "),
    };
    let of_v2 = match is_roce {
        true => format!(", with an address and of RoCE v2: {}", port.addresses().count()),
        false => String::new(),
    };
    let count = gids.len();
    let text = format!("{device}/{number} is {state}, {layer}, on {on}; GIDs: {count}{of_v2}");
    match port.is_active() {
        true if port.is_of_v1() => findings.note("rdma-port", text, without_address(port)),
        true if *is_roce && !gids.is_empty() && port.addresses().next().is_none() => {
            findings.problem("rdma-port", text, without_address(port));
        }
        true if gids.is_empty() => {
            let show = match interfaces.first() {
                Some(name) => format!("ip address show dev {}", shell_word(name)),
                None => String::from("rdma link"),
            };
            let remedy = remedy::show("give its interface an address", show);
            findings.problem("rdma-port", text, remedy);
        }
        true => findings.ok("rdma-port", text),
        false => {
            let said = "take its interface up; if it is, look at the cable and the switch";
            let remedy = match interfaces.first() {
                Some(name) => {
                    remedy::mend(said, as_root(&format!("ip link set {} up", shell_word(name))))
                }
                None => remedy::show(said, format!("rdma link show {device}/{number}")),
            };
            findings.problem("rdma-port", text, remedy);
        }
    }
}

/// What gives a port of RoCE a GID that connections can be made by.
fn without_address(port: &Port) -> Remedy {
    let (device, number) = (&port.device, &port.number);
    let of = match port.interfaces.first() {
        Some(name) => format!("ip address show dev {name}"),
        None => String::from("rdma link"),
    };
    let place = format!("/sys/class/infiniband/{device}/ports/{number}");
    let look = format!("{of}; grep -s . {place}/gids/* {place}/gid_attrs/types/*");
    if port.is_of_v1() {
        let said = "its GIDs are of RoCE v1 alone, which reaches only its like, and passes no \
                    router: have its driver, and its firmware, offer RoCE v2";
        return remedy::show(said, look);
    }
    remedy::show("give its interface the address of the connections", look)
}

/// Whether the address of a connection is a GID by which the connection manager finds a port of
/// RoCE.
pub fn gid(port: &Port, source: IpAddr, findings: &mut Findings) {
    if !port.is_roce {
        return;
    }
    let (device, number) = (&port.device, &port.number);
    match port.v2.contains(&as_gid(source)) {
        true => {
            findings.ok("rdma-gid", format!("{source} is a GID of RoCE v2 at {device}/{number}"))
        }
        false if port.is_of_v1() && port.gids.contains(&as_gid(source)) => {
            findings.ok("rdma-gid", format!("{source} is a GID of RoCE v1 at {device}/{number}"));
        }
        false => {
            let found = format!("{source} is no GID of RoCE v2 at {device}/{number}");
            findings.problem("rdma-gid", found, without_address(port));
        }
    }
}

/// Whether this user may open what leads to the devices.
pub fn access(findings: &mut Findings) {
    let of_devices = look::names(format!("{SYSFS}/class/infiniband_verbs"));
    let of_devices = of_devices.iter().filter(|name| name.starts_with("uverbs"));
    let mut files: Vec<PathBuf> =
        of_devices.map(|name| Path::new("/dev/infiniband").join(name)).collect();
    if files.is_empty() {
        files.push(PathBuf::from("/dev/infiniband/uverbs0"));
    }
    files.push(PathBuf::from("/dev/infiniband/rdma_cm"));
    for file in files {
        let name = file.display();
        match accessat(CWD, &file, Access::READ_OK | Access::WRITE_OK, AtFlags::EACCESS) {
            Ok(()) => findings.ok("rdma-files", format!("{name} may be read and written")),
            Err(error) if file.exists() => findings.problem(
                "rdma-files",
                format!("{name}: {}", std::io::Error::from(error)),
                remedy::mend(
                    "let everybody use it; for good a udev rule does so, as that of rdma-core",
                    as_root(&format!("chmod 666 {name}")),
                ),
            ),
            Err(_) => findings.problem(
                "rdma-files",
                format!("there is no {name}"),
                remedy::mend(
                    "load the modules that make it; a container is given it when it is started \
                     (--device=/dev/infiniband)",
                    as_root("modprobe -a ib_uverbs rdma_ucm"),
                ),
            ),
        }
    }
}

/// Whether rdma-core's libraries can be loaded, by the word of this program's dynamic loader.
pub fn libraries(findings: &mut Findings) {
    let this_program = std::env::current_exe().unwrap_or_default();
    let Some(loader) = command::loader(&this_program) else { return };
    let mut command = Command::new(loader);
    command.arg("--list").arg(&this_program).env("LD_PRELOAD", LIBRARIES.join(":"));
    let Some(said) = look::complaints(&mut command, Duration::from_secs(5)) else { return };
    for library in LIBRARIES {
        match said.lines().find(|line| line.contains(&format!("'{library}'"))) {
            None => findings.ok("rdma-core", format!("{library} can be loaded")),
            Some(line) => findings.problem(
                "rdma-core",
                line.trim_start_matches("ERROR: ld.so: ").to_owned(),
                install_rdma_core().with(
                    "install the libraries of rdma-core (Debian, Ubuntu: ibverbs-providers and \
                     librdmacm1; Fedora, RHEL: libibverbs and librdmacm), and start the program \
                     again",
                ),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_port_that_cannot_be_used_is_in_the_way() {
        let port = |state: &str, gids: &[&str], interfaces: &[&str]| Port {
            device: String::from("rxe0"),
            number: String::from("1"),
            state: String::from(state),
            layer: String::from("Ethernet"),
            interfaces: interfaces.iter().map(|name| String::from(*name)).collect(),
            gids: gids.iter().map(|gid| gid.parse().unwrap()).collect(),
            v2: Vec::new(),
            is_roce: false,
        };
        for (port, level, command) in [
            (port("ACTIVE", &["fe80::1"], &["eth0"]), "ok", ""),
            (port("ACTIVE", &[], &["eth0"]), "problem", "ip address show dev eth0"),
            (port("DOWN", &["fe80::1"], &["eth0"]), "problem", "ip link set eth0 up"),
            (port("INIT", &[], &[]), "problem", "rdma link show rxe0/1"),
        ] {
            let mut findings = Findings::default();
            super::state(&port, &mut findings);
            let told = findings.json("host", "h");
            let found = &told["findings"][0];
            assert!(found["level"] == level && found["check"] == "rdma-port", "{told:#}");
            assert!(found["command"].as_str().unwrap_or("").contains(command), "{told:#}");
        }
    }

    /// Of RoCE: which GIDs it has is not enough.
    #[test]
    fn a_port_of_roce_needs_a_gid_of_the_second_version_with_an_address() {
        let port = |gids: &[&str], v2: &[&str]| Port {
            device: String::from("rxe0"),
            number: String::from("1"),
            state: String::from("ACTIVE"),
            layer: String::from("Ethernet"),
            interfaces: vec![String::from("eth0")],
            gids: gids.iter().map(|gid| gid.parse().unwrap()).collect(),
            v2: v2.iter().map(|gid| gid.parse().unwrap()).collect(),
            is_roce: true,
        };
        let local = "fe80::1";
        let address = "::ffff:10.0.0.1";
        for (port, of_port, of_source, count) in [
            (port(&[local, address], &[local, address]), "ok", "ok", 1),
            (port(&[local, address], &[local]), "problem", "problem", 0),
            (port(&[local], &[local]), "problem", "problem", 0),
            (port(&[local, address], &[]), "note", "ok", 0),
            (port(&[local, "fd00::1"], &[local, "fd00::1"]), "ok", "problem", 1),
        ] {
            let mut findings = Findings::default();
            state(&port, &mut findings);
            gid(&port, "10.0.0.1".parse().unwrap(), &mut findings);
            let told = findings.json("host", "h");
            let [first, second] = told["findings"].as_array().unwrap().as_slice() else { panic!() };
            let levels = (first["level"].as_str().unwrap(), second["level"].as_str().unwrap());
            assert_eq!(levels, (of_port, of_source), "{told:#}");
            let end = format!("with an address and of RoCE v2: {count}");
            assert!(first["found"].as_str().unwrap().ends_with(&end), "{told:#}");
            let line = second["command"].as_str().unwrap_or("/sys/class/infiniband/rxe0/ports/1/");
            assert!(line.contains("/sys/class/infiniband/rxe0/ports/1/"), "{told:#}");
        }
        // Of InfiniBand and iWARP the connection manager asks for none.
        let other = Port { is_roce: false, ..port(&[local], &[]) };
        let mut findings = Findings::default();
        state(&other, &mut findings);
        gid(&other, "10.0.0.1".parse().unwrap(), &mut findings);
        assert_eq!(
            (findings.problems(), findings.json("host", "h")["findings"].as_array().unwrap().len()),
            (0, 1)
        );
    }

    #[test]
    fn ports_are_read_from_sysfs() {
        let root = std::env::temp_dir().join(format!("netacc-doctor-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let file = root.join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        let rxe = "class/infiniband/rxe0/ports/1";
        write(&format!("{rxe}/state"), "4: ACTIVE\n");
        write(&format!("{rxe}/link_layer"), "Ethernet\n");
        write(&format!("{rxe}/gids/0"), "0000:0000:0000:0000:0000:ffff:0a00:0001\n");
        write(&format!("{rxe}/gids/1"), "0000:0000:0000:0000:0000:0000:0000:0000\n");
        write(&format!("{rxe}/gids/2"), "fe80:0000:0000:0000:0000:0000:0000:0001\n");
        write(&format!("{rxe}/gids/3"), "0000:0000:0000:0000:0000:ffff:0a00:0001\n");
        write(&format!("{rxe}/gid_attrs/types/0"), "IB/RoCE v1\n");
        write(&format!("{rxe}/gid_attrs/types/2"), "IB/RoCE v1\n");
        write(&format!("{rxe}/gid_attrs/types/3"), "RoCE v2\n");
        write("class/infiniband/rxe0/node_type", "1: CA\n");
        write(&format!("{rxe}/gid_attrs/ndevs/0"), "eth0\n");
        let siw = "class/infiniband/siw0/ports/1";
        write(&format!("{siw}/state"), "1: DOWN\n");
        write(&format!("{siw}/link_layer"), "Ethernet\n");
        write("class/infiniband/siw0/node_type", "4: RNIC\n");
        write(&format!("{siw}/gids/0"), "0250:5600:0001:0000:0000:0000:0000:0000\n");
        write("class/net/eth1/address", "02:50:56:00:00:01\n");
        write("class/net/lo/address", "00:00:00:00:00:00\n");
        write("class/infiniband/garbage/ports/1/gids/0", "what?\n");
        let ports = ports_below(&root);
        fs::remove_dir_all(&root).unwrap();
        let [garbage, rxe, siw] = ports.as_slice() else { panic!("{ports:?}") };
        assert!(!garbage.is_active() && garbage.gids.is_empty() && garbage.interfaces.is_empty());
        assert!(rxe.is_active());
        assert_eq!((rxe.interfaces.as_slice(), rxe.gids.len()), (&["eth0".to_owned()][..], 2));
        assert_eq!(rxe.v2, ["::ffff:10.0.0.1".parse::<Ipv6Addr>().unwrap()]);
        assert!(rxe.is_roce && !siw.is_roce && !garbage.is_roce);
        assert!(rxe.has("10.0.0.1".parse().unwrap(), None));
        assert!(!rxe.has("10.0.0.2".parse().unwrap(), Some("eth1")));
        assert_eq!((siw.state.as_str(), siw.interfaces.as_slice()), ("DOWN", &["eth1".into()][..]));
        assert!(siw.has("10.0.0.2".parse().unwrap(), Some("eth1")));
    }
}
