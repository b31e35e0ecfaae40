variable "n" {
  default = 1
  validation {
    condition     = var.n > 2
    error_message = "The number is too small."
  }
}

job "web" {
  group "app" {
    task "server" {
      driver = "exec"
    }
  }
}
