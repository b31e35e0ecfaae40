job "backup" {
  type = "batch"
  periodic {
    cron             = "0 25 * * *"
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
