job "job-update-system" {
  type = "system"
  update {
    max_parallel = 2
    stagger = "1m"
  }
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
