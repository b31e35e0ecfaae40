job "service-gateway-terminating" {
  group "g" {
    network {
      mode = "bridge"
    }
    service {
      name = "gw"
      port = "8080"
      connect {
        gateway {
          terminating {
            service {
              name = "legacy"
              ca_file = "ca"
              cert_file = "cert"
              key_file = "key"
              sni = "x"
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
