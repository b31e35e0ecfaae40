job "group-network-reserved-lost" {
  group "g" {
    network {
      reserved_ports "r" {
        static = 24703
      }
      port "a" {
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
