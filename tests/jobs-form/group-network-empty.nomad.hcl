job "group-network-empty" {
  group "g" {
    network {
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
