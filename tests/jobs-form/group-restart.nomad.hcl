job "group-restart" {
  group "g" {
    restart {
      attempts = 5
      interval = "10m"
      delay = "25s"
      mode = "delay"
      render_templates = true
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
