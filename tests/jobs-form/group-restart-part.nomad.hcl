job "group-restart-part" {
  group "g" {
    restart {
      attempts = 0
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
