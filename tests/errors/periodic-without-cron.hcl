job "backup" {
  type = "batch"
  periodic {
    prohibit_overlap = true
  }
  group "backup" {
    task "dump" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
