job "service-connect-transparent" {
  group "g" {
    network {
      mode = "bridge"
    }
    service {
      name = "s"
      port = "9001"
      connect {
        sidecar_service {
          proxy {
            transparent_proxy {
              uid = "101"
              outbound_port = 15001
              exclude_inbound_ports = ["22"]
              exclude_outbound_ports = [53, 443]
              exclude_outbound_cidrs = ["10.0.0.0/8"]
              exclude_uids = ["0"]
              no_dns = true
            }
          }
        }
      }
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
