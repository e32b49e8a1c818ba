//! RDMA on this host: devices, their ports and GIDs, the files and libraries that reach them.

use super::finding::Findings;
use super::look;
use crate::command;
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
}

impl Port {
    /// Whether it can be used.
    pub fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }

    /// Whether an address, on that interface, is this port's.
    pub fn has(&self, ip: IpAddr, interface: Option<&str>) -> bool {
        let as_gid = match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        self.gids.contains(&as_gid)
            || interface.is_some_and(|name| self.interfaces.iter().any(|own| own == name))
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
            let gids = look::names(port.join("gids"));
            let gids = gids.iter().filter_map(|index| {
                let text = look::file(port.join("gids").join(index))?;
                text.parse().ok().filter(|gid: &Ipv6Addr| !gid.is_unspecified())
            });
            let mut gids: Vec<Ipv6Addr> = gids.collect();
            gids.dedup();
            ports.push(Port {
                interfaces: interfaces(sysfs, &device, &port, &gids),
                layer: look::file(port.join("link_layer")).unwrap_or_default(),
                device: device.clone(),
                number,
                state,
                gids,
            });
        }
    }
    ports
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
    let Port { device, number, state, layer, interfaces, gids } = port;
    let on = match interfaces.as_slice() {
        [] => String::from("no network interface"),
        names => names.join(", "),
    };
    let text = format!("{device}/{number} is {state}, {layer}, on {on}; GIDs: {}", gids.len());
    match port.is_active() {
        true if gids.is_empty() => {
            let remedy = format!("give its interface an address: ip address add … dev {on}");
            findings.problem("rdma-port", text, remedy);
        }
        true => findings.ok("rdma-port", text),
        false => {
            let up = interfaces.first().map(|name| format!("ip link set {name} up; "));
            let remedy = format!("{}rdma link; ibv_devinfo -d {device}", up.unwrap_or_default());
            findings.problem("rdma-port", text, remedy);
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
                format!("chmod 666 {name}; for good: a udev rule, or the package rdma-core"),
            ),
            Err(_) => findings.problem(
                "rdma-files",
                format!("there is no {name}"),
                "modprobe -a ib_uverbs rdma_ucm; of a container: --device=/dev/infiniband",
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
                "apt install ibverbs-providers librdmacm1; of Fedora, RHEL: dnf install \
                 libibverbs librdmacm; then start the program again",
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
        };
        for (port, level, remedy) in [
            (port("ACTIVE", &["fe80::1"], &["eth0"]), "ok", ""),
            (port("ACTIVE", &[], &["eth0"]), "problem", "ip address add … dev eth0"),
            (port("DOWN", &["fe80::1"], &["eth0"]), "problem", "ip link set eth0 up; rdma link"),
            (port("INIT", &[], &[]), "problem", "rdma link; ibv_devinfo -d rxe0"),
        ] {
            let mut findings = Findings::default();
            super::state(&port, &mut findings);
            let told = findings.json("host", "h");
            let found = &told["findings"][0];
            assert!(found["level"] == level && found["check"] == "rdma-port", "{told:#}");
            assert!(found["remedy"].as_str().unwrap_or("").contains(remedy), "{told:#}");
        }
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
        write(&format!("{rxe}/gid_attrs/ndevs/0"), "eth0\n");
        let siw = "class/infiniband/siw0/ports/1";
        write(&format!("{siw}/state"), "1: DOWN\n");
        write(&format!("{siw}/gids/0"), "0250:5600:0001:0000:0000:0000:0000:0000\n");
        write("class/net/eth1/address", "02:50:56:00:00:01\n");
        write("class/net/lo/address", "00:00:00:00:00:00\n");
        write("class/infiniband/garbage/ports/1/gids/0", "what?\n");
        let ports = ports_below(&root);
        fs::remove_dir_all(&root).unwrap();
        let [garbage, rxe, siw] = ports.as_slice() else { panic!("{ports:?}") };
        assert!(!garbage.is_active() && garbage.gids.is_empty() && garbage.interfaces.is_empty());
        assert!(rxe.is_active());
        assert_eq!((rxe.interfaces.as_slice(), rxe.gids.len()), (&["eth0".to_owned()][..], 1));
        assert!(rxe.has("10.0.0.1".parse().unwrap(), None));
        assert!(!rxe.has("10.0.0.2".parse().unwrap(), Some("eth1")));
        assert_eq!((siw.state.as_str(), siw.interfaces.as_slice()), ("DOWN", &["eth1".into()][..]));
        assert!(siw.has("10.0.0.2".parse().unwrap(), Some("eth1")));
    }
}
