job "group-network-reserved" {
  group "g" {
    network {
      reserved_ports "r" {
        static = 24703
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
