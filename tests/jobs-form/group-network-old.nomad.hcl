job "group-network-old" {
  group "g" {
    network {
      mode = "host"
      device = "eth0"
      cidr = "10.0.0.0/8"
      ip = "10.0.0.1"
      port "a" {
        static = 24702
        ignore_collision = true
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
