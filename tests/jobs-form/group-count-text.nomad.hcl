job "group-count-text" {
  group "g" {
    count = "2"
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
